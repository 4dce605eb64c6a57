"""GET /ui, /ui/blocks and their files, open to all; GET /ui/data/pool, which needs the key like everything else.

The files hold no data: whoever opens a page types the key, and the page sends it along. What a page may do is said by
its Content-Security-Policy: load from this server, nothing inline, and no text is ever parsed as HTML.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Response

from paged_core.engine.survey import Focus
from paged_core.server.reading import read_all
from paged_core.server.replies import json_response
from paged_core.server.state import Server, TheServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paged_core.engine.engine import Engine
    from paged_core.engine.metrics import EngineStats
    from paged_core.engine.survey import GroupLine, PoolSurvey

_FILES = {
    "/ui": "chat.html",
    "/ui/blocks": "blocks.html",
    "/ui/style.css": "style.css",
    "/ui/common.js": "common.js",
    "/ui/chat.js": "chat.js",
    "/ui/stream.js": "stream.js",
    "/ui/blocks.js": "blocks.js",
    "/ui/grid.js": "grid.js",
    "/ui/queues.js": "queues.js",
    "/ui/icon.svg": "icon.svg",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
PUBLIC = tuple(_FILES)
"""Open without a key: static files of the package, which hold no data."""
PATIENCE_S = 9.0
"""Seconds the engine may take to answer between two steps, before the page is told that it is busy."""
router = APIRouter()


def _page(name: str) -> Callable[[], Awaitable[Response]]:
    content = files(__package__).joinpath("static", name).read_bytes()
    media_type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"

    async def page() -> Response:
        return Response(content, headers={**_HEADERS, "Content-Type": media_type})

    return page


for _path, _name in _FILES.items():
    router.add_api_route(_path, _page(_name), methods=["GET", "HEAD"], include_in_schema=False)


@router.get("/ui/data/pool", include_in_schema=False)
async def pool(
    server: TheServer,
    block: Annotated[int | None, Query(ge=0)] = None,
    request: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """The pool between two steps, of several engines the first's. `block`, `request`: whose holders to tell."""

    def look(engine: Engine) -> tuple[EngineStats, PoolSurvey]:
        return engine.stats(), engine.survey(Focus(block, request))

    told = await read_all(server, look, PATIENCE_S)
    stats, survey = told[min(told)]
    response = json_response(_told(server, stats, survey))
    response.headers["Cache-Control"] = "no-store"
    return response


def _told(server: Server, stats: EngineStats, survey: PoolSurvey) -> dict[str, Any]:
    facts = server.facts
    return {
        "model": server.names[0],
        "plugins": dict(facts.plugins),
        "block_size": facts.block_size,
        "step": survey.step,
        "exact": survey.exact,
        "blocks": base64.b64encode(survey.blocks).decode(),
        "host": base64.b64encode(survey.host).decode(),
        "pool": asdict(stats.blocks),
        "generated": stats.num_generated,
        "preemptions": dict(stats.preemptions),
        "counts": {"running": stats.num_running, "waiting": stats.num_waiting, "preempted": stats.num_preempted},
        "running": _lines(survey.running),
        "preempted": _lines(survey.preempted),
        "waiting": _lines(survey.waiting),
        "holders": [holder._asdict() for holder in survey.holders],
        "held": survey.held,
    }


def _lines(lines: list[GroupLine]) -> list[dict[str, Any]]:
    return [line._asdict() for line in lines]
