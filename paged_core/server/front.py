"""Front: what is answered from the moment the socket listens, while the model is being loaded and afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse

from paged_core.server import status
from paged_core.server.auth import Auth
from paged_core.server.errors import ApiError
from paged_core.server.protocol.models import Health
from paged_core.server.request_ids import RequestIds

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from paged_core.server.settings import ServeSettings

_LOADING = "the model is being loaded"
_RETRY_AFTER_S = 5


class Front:
    """ASGI: `app`, once there is one. Until then /health says that the process lives, and all else is 503."""

    def __init__(self, settings: ServeSettings) -> None:
        self.app: ASGIApp | None = None
        self._loading = RequestIds(Auth(_loading, settings.api_key, status.PUBLIC))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on."""
        await (self.app or self._loading)(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {"Retry-After": str(_RETRY_AFTER_S)}
    if scope["path"] in status.PUBLIC:
        code = 200 if scope["path"] == status.HEALTH else 503
        body = Health(status="starting", reason=_LOADING).model_dump()
        response = JSONResponse(body, code, None if code == 200 else headers)
    else:
        response = ApiError(503, _LOADING, code="starting", headers={**headers, "Connection": "close"}).response()
    await response(scope, receive, send)
