"""Every failure as OpenAI's error object: {"error": {"message", "type", "param", "code"}}. No status is ever 422."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from paged_core.errors import EngineDeadError, RequestError
from paged_core.server.protocol.common import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request

log = logging.getLogger("paged_core.server")

INVALID = "invalid_request_error"
UNIONS = {
    "prompt": "must be text, a list of token ids, or a list of either",
    "stop": "must be a string or a list of strings",
    "tool_choice": "must be a string or an object",
}
"""Fields of several types: the validator complains once for each of them."""
_TYPES = {429: "rate_limit_error", 408: "timeout_error"}
_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


class ApiError(HTTPException):
    """An answer that is an error. `param` names the offending field, `headers` go out with it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code or _CODES.get(status)

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = _TYPES.get(self.status_code, INVALID if self.status_code < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.body, self.status_code, self.headers)


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: the request itself is at fault."""
    return ApiError(400, message, param=param)


def as_api_error(error: BaseException) -> ApiError:
    """What a caller is told of `error`. Only what was meant for callers is shown; everything else reads 'internal'."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return invalid(str(error), error.field)
    if isinstance(error, EngineDeadError):
        return ApiError(500, "the engine has stopped; the server's log says why", code="engine_dead")
    if isinstance(error, RequestValidationError):
        return _validation(error.errors())
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    log.error("unexpected %s while answering", type(error).__name__, exc_info=error)
    return ApiError(500, "internal error; the server's log says more", code="internal_error")


def _validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first problem of each field, in one sentence each; `param` is the first field."""
    problems: dict[str, str] = {}
    for error in errors:
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, RefusedError):
            return invalid(str(cause), cause.name)
        if error["loc"] == ("body",) and error["type"] == "missing":
            return invalid("the request has no body")
        where = [str(part) for part in error["loc"] if part not in ("body", "query", "header")]
        name = where[0] if where else ""
        text = str(error["msg"]).removeprefix("Value error, ")
        if name in UNIONS and error["type"] != "missing":
            text = UNIONS[name]
        problems.setdefault(name, f"{name}: {text}" if name else text)
    shown = list(problems.values())[:5]
    return invalid("; ".join(shown), next(iter(problems), "") or None)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    return as_api_error(error).response()


def install(app: FastAPI) -> None:
    """Route every exception through `as_api_error`."""
    for kind in (ApiError, RequestError, EngineDeadError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)
