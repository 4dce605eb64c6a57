"""GET /metrics: the engine's inside for Prometheus, read when it is asked for: no gauge can be stale."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from paged_core.server.families import Reading, all_families
from paged_core.server.reading import read_all
from paged_core.server.state import TheServer

router = APIRouter()
PATIENCE_S = 9.0
"""Seconds the engine may take to answer between two steps; Prometheus waits for 10 s unless told otherwise."""


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"application/openmetrics-text": {}}, "description": "All metrics"}},
)
async def metrics(server: TheServer, request: Request) -> Response:
    """All metrics, as text in Prometheus' form or, where `Accept` asks for it, in that of OpenMetrics."""
    readings = await read_all(server, Reading.of, PATIENCE_S)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(all_families(readings, server.names[0]))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"Content-Type": content_type})
