"""What both generating routes need around their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.responses import Response

from paged_core.server.answers import Streaming
from paged_core.server.sse import encode

if TYPE_CHECKING:
    from paged_core.server.protocol.common import SamplingBody


def json_response(value: dict[str, Any]) -> Response:
    """An answer of plain values; strict JSON."""
    return Response(encode(value), media_type="application/json")


def streaming(body: SamplingBody) -> Streaming:
    """What stream_options ask for."""
    options = body.stream_options
    return Streaming(bool(options and options.include_usage), bool(options and options.continuous_usage_stats))
