"""Gate: a server that shuts down, or whose engine hangs or has stopped, answers only what tells its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError
from paged_core.server.status import sickness

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from paged_core.server.state import Server


class Gate:
    """ASGI middleware: 503 with Retry-After. Requests that are inside already are not touched. `always`: paths that
    stay open."""

    def __init__(self, app: ASGIApp, server: Server, always: Collection[str]) -> None:
        self._app = app
        self._server = server
        self._always = frozenset(always)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 503."""
        refusal = None if scope["type"] != "http" or scope["path"] in self._always else self._refusal()
        await (self._app if refusal is None else refusal.response())(scope, receive, send)

    def _refusal(self) -> ApiError | None:
        headers = {"Retry-After": "5", "Connection": "close"}
        if self._server.phase.draining:
            return ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)
        reason = sickness(self._server)
        if reason is None:
            return None
        code = "engine_hangs" if self._server.llm.is_running else "engine_dead"
        return ApiError(503, f"{reason}; the server's log may say why", code=code, headers=headers)
