"""BodyLimit: bodies are measured while they are read, each and all together; none too large is read to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: 413 for a request with more than `limit` bytes, at once where its length says so. (Starlette has
    one that answers in plain text, whatever handlers there are.) 429 when the bodies of all requests that are being
    answered have more than `total`: they are read before it is known how many prompts they are."""

    def __init__(self, app: ASGIApp, limit: int, total: int) -> None:
        self._app = app
        self._limit = limit
        self._total = max(limit, total)
        self._held = 0

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
            size = len(message.get("body", b""))
            num_bytes += size
            self._held += size
            if num_bytes > self._limit:
                raise self._error()
            if self._held > self._total:
                raise self._full()
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._held -= num_bytes

    def _full(self) -> ApiError:
        message = f"the requests that are being worked on have more than {self._total} bytes: try again later"
        return ApiError(429, message, code="queue_full", headers={"Retry-After": "1", "Connection": "close"})

    def _error(self) -> ApiError:
        message = f"the request's body has more than {self._limit} bytes, which is what this server takes"
        return ApiError(413, message, headers={"Connection": "close"})
