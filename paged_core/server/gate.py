"""Gate: while the server shuts down, only what tells its state is answered; all else gets 503."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from paged_core.server.state import Phase


class Gate:
    """ASGI middleware. Requests that are inside already are not touched. `always`: paths that stay open."""

    def __init__(self, app: ASGIApp, phase: Phase, always: Collection[str]) -> None:
        self._app = app
        self._phase = phase
        self._always = frozenset(always)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 503."""
        if scope["type"] != "http" or not self._phase.draining or scope["path"] in self._always:
            await self._app(scope, receive, send)
            return
        headers = {"Retry-After": "5", "Connection": "close"}
        error = ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)
        await error.response()(scope, receive, send)
