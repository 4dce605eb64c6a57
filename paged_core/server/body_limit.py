"""BodyLimit: bodies are measured while they are read; what is too large is not read to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: 413 for a request with more than `limit` bytes, at once where its length says so. (Starlette has
    one that answers in plain text, whatever handlers there are.)"""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with a `receive` that counts, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if length.isdigit() and int(length) > self._limit:
            await self._error().response()(scope, receive, send)
            return
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._limit:
                raise self._error()
            return message

        await self._app(scope, receive_counted, send)

    def _error(self) -> ApiError:
        message = f"the request's body has more than {self._limit} bytes, which is what this server takes"
        return ApiError(413, message, headers={"Connection": "close"})
