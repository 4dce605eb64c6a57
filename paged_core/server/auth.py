"""Auth: API keys on every path but those that are named as public. Deny by default."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

TENANT = "tenant"
"""Where the digest of the caller's key lies in the request's state."""
_PUBLIC_METHODS = ("GET", "HEAD")


class Auth:
    """ASGI middleware. `public` holds exact paths that GET and HEAD may reach without a key; nothing is normalised, so
    that no spelling of a path is taken for another. Without keys everybody may do everything.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str], public: Collection[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through or answer 401."""
        if scope["type"] == "lifespan" or not self._digests or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(scope)
        if tenant is not None:
            scope.setdefault("state", {})[TENANT] = tenant
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            message = "a valid API key is needed, in the header Authorization: Bearer KEY"
            await ApiError(401, message, headers=headers).response()(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] in _PUBLIC_METHODS and scope["path"] in self._public

    def _tenant(self, scope: Scope) -> str | None:
        """The digest of the key, if it is one of ours. Every key is compared, each in constant time."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return None
        scheme, _, key = given[0].partition(b" ")
        digest = _digest(key.strip())
        known = [hmac.compare_digest(digest, one) for one in self._digests]
        return digest.hex() if any(known) and scheme.lower() == b"bearer" else None


def _digest(key: bytes) -> bytes:
    """Of equal length for all keys, so that comparing tells nothing of theirs."""
    return hashlib.sha256(key).digest()
