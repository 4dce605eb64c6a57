"""RequestIds: every answer names its request, by the caller's X-Request-Id where one was sent; the log does too."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("paged_core.server.access")

HEADER = b"x-request-id"
ARRIVED = "arrived"
"""Where the time of arrival (monotonic seconds) lies in the request's state."""
_PRINTABLE = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """ASGI middleware. The caller's id is echoed and logged; the engine never sees it (two callers may send one id)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with the id in the response's headers and in the request's state."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == HEADER]
        mine = given[0] if len(given) == 1 and _PRINTABLE.fullmatch(given[0]) else uuid.uuid4().hex.encode()
        arrived, status = time.monotonic(), 0
        scope["state"] = {**scope.get("state", {}), "request_id": mine.decode(), ARRIVED: arrived}

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, mine)]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            took = time.monotonic() - arrived
            log.info("%s %a %d %.3f s %s", scope["method"], scope["path"], status, took, mine.decode())
