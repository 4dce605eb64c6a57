"""Connection: uvicorn's HTTP/1.1 over httptools, with bounds on what comes before a body.

httptools has none: a request that never ends its headers would fill the memory, one that never begins would keep its
connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 1 << 16
"""Bytes of request line and headers together, trailers included."""
HEAD_TIMEOUT_S = 30.0
"""Seconds in which they must arrive, counted from the connection or from their first byte."""


class HeadTooLargeError(ValueError):
    """Raised inside the parser, which ends the connection with 400."""


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._num_head = 0
        self._num_unseen = 0  # bytes since the parser last told of anything: of a header that has not ended
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: its first request has to follow."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client is gone."""
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._num_unseen += len(data)
        super().data_received(data)
        if self._num_unseen > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._num_head = self._num_unseen = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer of a chunked body."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._num_unseen = 0
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body, which the application measures."""
        self._num_unseen = 0
        super().on_body(body)

    def _count(self, num_bytes: int) -> None:
        self._num_unseen = 0
        self._num_head += num_bytes
        if self._num_head > MAX_HEAD:
            raise HeadTooLargeError(f"the head has more than {MAX_HEAD} bytes")

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
