"""EventReader: server-sent events out of bytes that arrive in any pieces."""

from __future__ import annotations


class EventReader:
    """Collects `data` of events; comments and other fields are skipped, lines may end in CR LF or LF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of all events that `piece` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found
