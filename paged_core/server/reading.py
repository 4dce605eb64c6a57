"""read_all: what the engine, or each of several, says of itself between two steps, for routes that show it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paged_core.engine.engine import Engine
    from paged_core.server.state import Server

_T = TypeVar("_T")


async def read_all(server: Server, question: Callable[[Engine], _T], patience_s: float) -> Mapping[str, _T]:
    """The answer of `question`, put to each engine in its own thread, by the engine's name. ApiError 503 when it does
    not come in `patience_s` seconds: the engine is at one long step."""
    try:
        async with asyncio.timeout(patience_s):
            return await server.llm.ask_all(question)
    except TimeoutError:
        reason = f"the engine has been at one step for {server.llm.silent_s:.0f} s: there is nothing to read"
        raise ApiError(503, reason, code="engine_busy", headers={"Retry-After": "10"}) from None
