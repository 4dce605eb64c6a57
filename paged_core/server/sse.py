"""Server-sent events: the bytes of a stream, and the response that sends them no faster than they are read."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi.responses import StreamingResponse

from paged_core.server.errors import as_api_error
from paged_core.server.presence import while_connected

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastapi import Request
    from starlette.types import Send

    Chunks = AsyncGenerator[dict[str, Any], None]

DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    """Compact JSON; never NaN or Infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + encode(value) + b"\n\n"


async def open_stream(request: Request, chunks: Chunks) -> EventStream:
    """The response for `chunks`. Waits for the first one, so that a request that fails before it began to answer gets
    a plain error and no stream."""
    first = await while_connected(request, _first(chunks))
    return EventStream(_events(first, chunks))


class EventStream(StreamingResponse):
    """Ends its source whichever way it ends: a client that leaves aborts its request at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Send everything; awaiting `send` is what holds up the source while the reader is slow."""
        async with aclosing(self._events):
            await super().stream_response(send)


async def _first(chunks: Chunks) -> dict[str, Any] | None:
    return await anext(chunks, None)


async def _events(first: dict[str, Any] | None, chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """The events of all chunks and [DONE]; or, after a failure, one error event and nothing more."""
    async with aclosing(chunks):
        try:
            if first is not None:
                yield event(first)
            async for chunk in chunks:
                yield event(chunk)
        except Exception as error:
            yield event(as_api_error(error).body)
        else:
            yield DONE
