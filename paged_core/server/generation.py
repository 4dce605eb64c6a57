"""From prompts to outputs: admission, cache salt and time limit of one request, and what its failures mean."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.server.auth import TENANT
from paged_core.server.errors import ApiError, invalid
from paged_core.server.limits import time_limit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastapi import Request

    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.server.protocol.common import SamplingBody
    from paged_core.server.state import Server

_DEADLINE = "its deadline passed"


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts (token ids) to be answered alike. `form_field`: the field that prescribed the form of the answer."""

    prompts: list[list[int]]
    params: SamplingParams
    routing: dict[str, Any]
    form_field: str = "structured_outputs"


def routing(server: Server, request: Request, body: SamplingBody) -> dict[str, Any]:
    """Whose request it is, how urgent, and how long it may take."""
    tenant = request.scope.get("state", {}).get(TENANT)
    values = {
        "priority": body.priority,
        "cache_salt": server.salt(tenant, body.cache_salt),
        "timeout": time_limit(request.headers, body.timeout, server.settings.timeout),
    }
    return {name: value for name, value in values.items() if value is not None}


def check_length(server: Server, ids: list[int], params: SamplingParams) -> None:
    """400 when prompt and answer together exceed the model. What else can be wrong with a prompt the engine says."""
    longest, most = server.facts.max_model_len, params.max_tokens
    num = len(ids)
    if params.truncate_prompt_tokens is not None:
        room = max(1, longest - (most or 1))
        num = min(num, room if params.truncate_prompt_tokens == -1 else params.truncate_prompt_tokens)
    if most is not None and num < longest < num + most:
        raise invalid(
            f"this model takes {longest} tokens, prompt and answer together; the prompt has {num} and max_tokens asks "
            f"for {most} more: lower it to {longest - num}",
            "max_tokens",
        )


async def outputs(server: Server, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """(index of the prompt, its newest output) until all are finished. A failed one ends all of them: ApiError."""
    with server.admission.enter(len(job.prompts)):
        prompts = [{"prompt_token_ids": ids} for ids in job.prompts]
        async with aclosing(server.llm.generate_all(prompts, job.params, **job.routing)) as stream:
            async for index, output in stream:
                if output.finished:
                    _check(output, job)
                yield index, output


async def final_outputs(server: Server, job: Job) -> list[RequestOutput]:
    """The finished output of every prompt."""
    found: dict[int, RequestOutput] = {}
    async with aclosing(outputs(server, job)) as stream:
        async for index, output in stream:
            found[index] = output
    return [found[index] for index in sorted(found)]


def _check(output: RequestOutput, job: Job) -> None:
    reasons = {branch.finish_reason for branch in output.outputs}
    said = output.error or "no reason is known"
    if "error" in reasons:
        field = job.form_field if said.startswith("structured_outputs") else None
        raise invalid(f"this request failed: {said}", field)
    if "abort" in reasons and output.error == _DEADLINE:
        headers = {"x-should-retry": "false"}
        raise ApiError(408, "the request's time limit passed", code="timeout", headers=headers)
    if "abort" in reasons:
        raise ApiError(503, "the server is shutting down", code="shutting_down")
