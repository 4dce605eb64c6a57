"""Events come whole, however the bytes are cut."""

from __future__ import annotations

from paged_core.bench.serve.events import EventReader

STREAM = b': waiting\n\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 3\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a": 1}', b"two\nlines", b"[DONE]"]


def test_events_are_the_same_whatever_the_pieces() -> None:
    for size in range(1, len(STREAM) + 1):
        reader = EventReader()
        pieces = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
        assert [found for piece in pieces for found in reader.feed(piece)] == EVENTS, size


def test_an_event_waits_for_its_empty_line() -> None:
    reader = EventReader()
    assert reader.feed(b"data: half\n") == []
    assert reader.feed(b"\n") == [b"half"]
