"""strict_json: JSON as the standard has it: no NaN, no half of a surrogate pair, no bottomless nesting."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.routing import APIRoute

from paged_core.server.errors import ApiError, invalid
from paged_core.server.text_threads import LONG_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.responses import Response

MAX_DEPTH = 128
MAX_PARTS = 1 << 17
"""Texts, lists and objects in one body, names of members included: checking them takes time on the event loop. Numbers,
and long texts, take next to none."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(body: bytes) -> Any:
    """The value of a JSON text. ApiError 400 says what is wrong with it."""
    try:
        # json.loads would decode bytes laxly: halves of surrogate pairs, and UTF-16, in which nothing below is found.
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise invalid(f"the body is nested more than {MAX_DEPTH} levels deep") from None
    except UnicodeDecodeError:
        raise invalid("the body is not UTF-8") from None
    except ValueError as error:
        raise invalid(f"the body is not JSON: {str(error)[:200]}") from None
    num_containers = body.count(b"[") + body.count(b"{")
    if num_containers > MAX_DEPTH or body.count(b'"') > MAX_PARTS or _HALF.search(body):
        _check(value)
    return value


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`, large ones off the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a request that parses strictly."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await inner(_StrictRequest(request.scope, request.receive))

        return handle


class _StrictRequest(Request):
    async def body(self) -> bytes:
        """The body's bytes. ApiError when they are no JSON by their own account, or do not arrive in time."""
        kind = self.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            # Not mere tidiness: a page in a browser may send other types to this server without asking it first.
            raise ApiError(415, "the body must be JSON, with the header Content-Type: application/json")
        seconds = self.app.state.server.settings.body_timeout
        try:
            async with asyncio.timeout(seconds):
                return await super().body()
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {seconds:g} s", code="timeout") from None

    async def json(self) -> Any:
        """The body's value."""
        body = await self.body()
        if len(body) < LONG_BYTES:
            return parse(body)
        return await self.app.state.server.in_thread(self, parse, body)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _check(value: Any) -> None:
    """Walk the whole value, a level at a time."""
    level, depth, num_parts = [value], 0, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid(f"the body is nested more than {MAX_DEPTH} levels deep")
        num_parts += sum(not isinstance(one, int | float) for one in level)
        if num_parts > MAX_PARTS:
            raise invalid(f"the body has more than {MAX_PARTS} texts, lists and objects")
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                _check_text(one)
            elif isinstance(one, dict):
                below += one.keys()
                below += one.values()
            elif isinstance(one, list):
                below += one
        level = below


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid("the body holds half of a surrogate pair, which is not text") from None
