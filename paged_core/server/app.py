"""create_app: routes, middleware and error handlers around one backend. No globals; state is on `app.state.server`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from paged_core import __version__
from paged_core.server import chat, completions, errors, metrics, status, tokens
from paged_core.server.auth import Auth
from paged_core.server.body_limit import BodyLimit
from paged_core.server.gate import Gate
from paged_core.server.limits import Admission
from paged_core.server.protocol.models import ErrorBody
from paged_core.server.request_ids import RequestIds
from paged_core.server.settings import ServeSettings
from paged_core.server.state import Server
from paged_core.server.tools.dialect import dialect_of
from paged_core.server.ui import routes as ui

if TYPE_CHECKING:
    from paged_core.server.backend import Backend

log = logging.getLogger("paged_core.server")

_ROUTERS = (ui.router, completions.router, chat.router, tokens.router, status.router, metrics.router)
_PUBLIC = (*status.PUBLIC, *ui.PUBLIC)
_WHILE_DRAINING = (*status.PUBLIC, "/metrics")


def create_app(llm: Backend, settings: ServeSettings | None = None) -> FastAPI:
    """The application. It does not own `llm`: who made it shuts it down."""
    settings = settings or ServeSettings.load()
    facts = llm.engine.facts
    names = settings.served_model_name or (facts.model,)
    dialect = dialect_of(llm.engine.tokenizer, settings.tool_format)
    log.info(dialect.describe())
    server = Server(llm, settings, names, Admission(llm.max_num_seqs + settings.max_queue), dialect)
    app = FastAPI(
        title="paged-core",
        version=__version__,
        docs_url="/docs" if settings.docs else None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    app.state.server = server
    for router in _ROUTERS:
        app.include_router(router)
    errors.install(app)
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit, limit=settings.max_body, total=settings.max_bodies)
    app.add_middleware(Gate, server=server, always=_WHILE_DRAINING)
    app.add_middleware(Auth, keys=settings.api_key, public=_PUBLIC)
    if settings.allow_origin:  # a browser asks for leave without a key, so this stands before the keys
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allow_origin, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(RequestIds)
    return app
