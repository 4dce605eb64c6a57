"""GET /health, /ready, /version, /v1/models."""

from __future__ import annotations

from fastapi import APIRouter, Response

from paged_core import __version__
from paged_core.server.protocol.models import Health, ModelCard, ModelList, Version
from paged_core.server.state import Server, TheServer

router = APIRouter()
HEALTH, READY = "/health", "/ready"
PUBLIC = (HEALTH, READY)
"""Open without a key: for whatever watches over the process."""


def sickness(server: Server) -> str | None:
    """Why the server is not healthy, or None."""
    if not server.llm.is_running:
        return "the engine has stopped"
    silent = server.llm.silent_s
    if silent > server.settings.stall:
        return f"the engine has not finished a step for {silent:.0f} s"
    return None


@router.head(HEALTH, include_in_schema=False)  # load balancers ask so
@router.get(HEALTH)
async def health(server: TheServer, response: Response) -> Health:
    """200 while the engine works or waits for work, else 503 with the reason."""
    return _told(response, sickness(server))


@router.head(READY, include_in_schema=False)
@router.get(READY)
async def ready(server: TheServer, response: Response) -> Health:
    """200 while new requests are taken, else 503."""
    return _told(response, "the server is shutting down" if server.phase.draining else sickness(server))


@router.get("/version")
async def version() -> Version:
    """The program's version."""
    return Version(version=__version__)


@router.get("/v1/models")
async def models(server: TheServer) -> ModelList:
    """All names under which the model is served."""
    return ModelList(data=[_card(server, name) for name in server.names])


@router.get("/v1/models/{model:path}")
async def model(model: str, server: TheServer) -> ModelCard:
    """One of them."""
    return _card(server, server.check_model(model))


def _card(server: Server, name: str) -> ModelCard:
    facts = server.facts
    return ModelCard(id=name, created=server.started, root=facts.model, max_model_len=facts.max_model_len)


def _told(response: Response, reason: str | None) -> Health:
    if reason is None:
        return Health(status="ok")
    response.status_code = 503
    return Health(status="unavailable", reason=reason)
