"""Work goes on only while somebody waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fastapi import Request

_T = TypeVar("_T")
CLIENT_CLOSED_REQUEST = 499


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client leaves (ApiError 499, which nobody reads).

    The request's body must have been read: whatever arrives after it is the news of a closed connection.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(CLIENT_CLOSED_REQUEST, "the client closed the connection")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
