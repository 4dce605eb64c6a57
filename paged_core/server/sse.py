"""Server-sent events: the bytes of a stream, and the response that sends them no faster than they are read."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from fastapi.responses import StreamingResponse

from paged_core.server.errors import as_api_error
from paged_core.server.presence import while_connected

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from paged_core.server.answers import Chunks

DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"
"""A comment, which every reader of events skips."""
PATIENCE_S = 15.0


def encode(value: Any) -> bytes:
    """Compact JSON; never NaN or Infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + encode(value) + b"\n\n"


async def open_stream(request: Request, chunks: Chunks) -> EventStream:
    """The response for `chunks`. Waits a while for the first one, so that a request that fails before it began to
    answer gets a plain error and no stream. A request that still waits for its turn then gets its headers, and
    comments that keep proxies from giving up."""
    first = asyncio.ensure_future(anext(chunks, None))
    try:
        await while_connected(request, asyncio.wait({first}, timeout=PATIENCE_S))
        if first.done():
            first.result()
    except BaseException:
        await _stop(first, chunks)
        raise
    return EventStream(first, chunks)


class EventStream(StreamingResponse):
    """Ends its source whichever way it ends, begun or not: a client that leaves aborts its request at once."""

    media_type = "text/event-stream"

    def __init__(self, first: asyncio.Future[dict[str, Any] | None], chunks: Chunks) -> None:
        self._first, self._chunks = first, chunks
        self._events = _events(first, chunks)
        super().__init__(self._events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; awaiting `send` is what holds up the source while the reader is slow."""
        try:
            await super().__call__(scope, receive, send)
        finally:  # not inside: what is cancelled there is cancelled at every further step
            await self._events.aclose()
            await _stop(self._first, self._chunks)


async def _events(first: asyncio.Future[dict[str, Any] | None], chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """The events of all chunks and [DONE]; or, after a failure, one error event and nothing more."""
    try:
        while not first.done():
            yield WAITING
            await asyncio.wait({first}, timeout=PATIENCE_S)
        chunk = first.result()
        while chunk is not None:
            yield event(chunk)
            chunk = await anext(chunks, None)
    except Exception as error:
        yield event(as_api_error(error).body)
    else:
        yield DONE


async def _stop(first: asyncio.Future[Any], chunks: Chunks) -> None:
    """Nobody wants more. A generator that is being waited for can be closed only when that has been cancelled."""
    first.cancel()
    await asyncio.wait({first})
    if not first.cancelled():
        first.exception()  # told already, or there is nobody left to tell
    await chunks.aclose()
