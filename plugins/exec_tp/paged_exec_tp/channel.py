"""Channel: whole messages over a socket, a length in front of each."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 18


class Channel:
    """One end. The engine's end never blocks on reading: `arrived` takes what is there."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    def send(self, message: bytes, limit_s: float | None = None) -> None:
        """Raises TimeoutError after `limit_s`, OSError when the other end is gone."""
        self.sock.settimeout(limit_s)
        self.sock.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """The next message; waits for it. None when the other end is gone."""
        self.sock.settimeout(None)
        while (message := self._cut()) is None:
            if not self._read():
                return None
        return message

    def arrived(self) -> tuple[list[bytes], bool]:
        """Messages that are there, and whether more can come. Call it when the socket is readable."""
        self.sock.settimeout(0.0)
        goes_on = True
        with contextlib.suppress(BlockingIOError):
            goes_on = self._read()
        messages = []
        while (message := self._cut()) is not None:
            messages.append(message)
        return messages, goes_on

    def close(self) -> None:
        """Idempotent."""
        self.sock.close()

    def _read(self) -> bool:
        try:
            piece = self.sock.recv(_PIECE)
        except ConnectionError:
            return False
        self._buffer += piece
        return bool(piece)

    def _cut(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            return None
        message = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        return message
