"""Connection: uvicorn's HTTP/1.1 over httptools, with bounds on what comes before a body and after an answer.

httptools has none: a request that never ends its headers would fill the memory, one that never begins would keep its
connection. And a connection that is closed while its client still sends is reset, which takes the answer from the
client: whoever sends too large a body, or sends one without a key, has to be let finish in order to read why not.

One request at a time: what a client sends before it has its answer is not read as a request, and the connection is
closed after that answer. uvicorn would queue it, and stop reading; a client that then leaves would not be noticed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HEAD = 1 << 16
"""Bytes of request line and headers together, trailers included."""
HEAD_TIMEOUT_S = 30.0
"""Seconds in which they must arrive, counted from the connection or from their first byte."""
MAX_REST = 1 << 26
"""Bytes of a request that are taken, and thrown away, after its answer."""
REST_TIMEOUT_S = 10.0
"""Seconds in which they must arrive."""
READ_TIMEOUT_S = 60.0
"""Seconds in which a client has to read something of what waits for it."""


class HeadTooLargeError(ValueError):
    """Raised inside the parser, which ends the connection with 400."""


class EarlyRequestError(ValueError):
    """Raised inside the parser, to end it."""


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._num_head = 0
        self._num_unseen = 0  # bytes since the parser last told of anything: of a header that has not ended
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_request = self._is_last = self._parted = False
        self._num_rest = 0
        self._rest_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: its first request has to follow."""
        self._socket = transport
        super().connection_made(_Parting(transport, self._part))  # type: ignore[arg-type]
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client is gone."""
        self._head_is_there()
        self._rest_is_there()
        self._has_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, up to the end of the last request."""
        if self._is_last or self._parted:
            self._count_rest(len(data))
            return
        self._num_unseen += len(data)
        super().data_received(data)
        if self._num_unseen > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_request = True
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_last, self.cycle.keep_alive = True, False
            raise EarlyRequestError("the request before this one has not been answered")
        super().on_message_begin()
        self._num_head = self._num_unseen = 0
        self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """End the connection for what is no request; an answer that is being given goes on."""
        if not self._is_last:
            super().send_400_response(msg)

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
        if self._rest_timer is not None:
            self._count_rest(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there."""
        self._in_request = False
        self._rest_is_there()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer has been given."""
        super().on_response_complete()
        if self._in_request and not self.transport.is_closing():
            self._expect_rest()

    def pause_writing(self) -> None:
        """The client is slower than its answer, which waits; but not for ever, for it keeps a place in the house."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """The client has read."""
        self._has_read()
        super().resume_writing()

    def _count(self, num_bytes: int) -> None:
        self._num_unseen = 0
        self._num_head += num_bytes
        if self._num_head > MAX_HEAD:
            raise HeadTooLargeError(f"the head has more than {MAX_HEAD} bytes")

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self._socket.close)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expect_reading(self) -> None:
        size = self._socket.get_write_buffer_size()
        self._read_timer = asyncio.get_running_loop().call_later(READ_TIMEOUT_S, self._go_on_if_less_than, size)

    def _go_on_if_less_than(self, size: int) -> None:
        if self._socket.get_write_buffer_size() < size:
            self._expect_reading()
        else:
            self._socket.abort()

    def _has_read(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _part(self) -> None:
        """Close; a client in the middle of its request may finish."""
        if not self._in_request or self._parted or self._socket.is_closing():
            self._socket.close()
            return
        self._parted = True
        self._head_is_there()
        self.flow.resume_reading()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # as when the connection is lost: nobody reads an answer any more
            self.cycle.message_event.set()
        self._socket.write_eof()
        self._expect_rest()

    def _expect_rest(self) -> None:
        self._rest_is_there()
        self._num_rest = 0
        self._rest_timer = asyncio.get_running_loop().call_later(REST_TIMEOUT_S, self._socket.close)

    def _rest_is_there(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _count_rest(self, num_bytes: int) -> None:
        self._num_rest += num_bytes
        if self._num_rest > MAX_REST:
            self._socket.close()


class _Parting:
    """A transport that leaves it to its connection how to close."""

    def __init__(self, transport: asyncio.Transport, part: Callable[[], None]) -> None:
        self._transport = transport
        self._parting = False
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._parting = True
        self._part()

    def is_closing(self) -> bool:
        return self._parting or self._transport.is_closing()
