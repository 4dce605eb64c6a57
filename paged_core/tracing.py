"""Trace: spans of time by name, written as a Chrome trace (chrome://tracing, https://ui.perfetto.dev).

Off, it costs nothing: what is to be timed is wrapped when the program starts, and only then.
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paged_core.api.executor import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MOST_SPANS = 1_000_000


class Trace:
    """Spans of one place (engine, executor), the latest million of them."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`function`, every call of which is a span."""
        now, append = time.perf_counter_ns, self._spans.append

        def call(*args: Any, **keywords: Any) -> Any:
            begin = now()
            try:
                return function(*args, **keywords)
            finally:
                append(Span(name, begin, now() - begin))

        return call

    def watch(self, owner: Any, names: Mapping[str, str]) -> None:
        """Time calls of attributes of `owner`: attribute -> span name. An attribute that is None stays so."""
        for attribute, name in names.items():
            if (function := getattr(owner, attribute)) is not None:
                setattr(owner, attribute, self.timed(function, name))

    def add(self, names: Sequence[str], begins: Sequence[int]) -> None:
        """Spans that follow each other: name i from begins[i] to begins[i + 1], in nanoseconds of `perf_counter_ns`."""
        self._spans.extend(
            Span(name, begin, end - begin) for name, begin, end in zip(names, begins[:-1], begins[1:], strict=True)
        )

    def take(self) -> list[Span]:
        """The spans since the last call."""
        spans = list(self._spans)
        self._spans.clear()
        return spans

    def __len__(self) -> int:
        """Spans held."""
        return len(self._spans)


def write_chrome_trace(path: Path, places: Mapping[str, list[Span]]) -> None:
    """Write the spans of each place as one track. Times are microseconds from the first span on."""
    start = min((span.begin for spans in places.values() for span in spans), default=0)
    events: list[dict[str, Any]] = []
    for track, (place, spans) in enumerate(places.items(), start=1):
        events.append({"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": place}})
        events += [
            {
                "ph": "X",
                "pid": 1,
                "tid": track,
                "name": span.name,
                "ts": (span.begin - start) / 1e3,
                "dur": span.duration / 1e3,
            }
            for span in spans
        ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
