"""From prompts to outputs: admission, cache salt and time limit of one request, and what its failures mean."""

from __future__ import annotations

import time
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError
from paged_core.server.auth import TENANT
from paged_core.server.errors import ApiError, invalid
from paged_core.server.limits import time_limit
from paged_core.server.request_ids import ARRIVED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from fastapi import Request

    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.server.protocol.common import SamplingBody
    from paged_core.server.state import Server

_DEADLINE = "its deadline passed"


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts (token ids) to be answered alike. `fields`: the body's names for fields of the engine."""

    prompts: list[list[int]]
    params: SamplingParams
    routing: dict[str, Any]
    fields: Mapping[str, str]


@contextmanager
def named(fields: Mapping[str, str]) -> Iterator[None]:
    """Complaints about a field of the engine's leave the block as complaints about the caller's."""
    try:
        yield
    except RequestError as error:
        raise invalid(str(error), fields.get(error.field or "", error.field)) from error


def routing(server: Server, request: Request, body: SamplingBody) -> dict[str, Any]:
    """Whose request it is, how urgent, and how long it may take."""
    state = request.scope["state"]
    limit = time_limit(request.headers, body.timeout, server.settings.timeout)
    if limit is not None:
        limit = max(0.0, limit - (time.monotonic() - state[ARRIVED]))
    values = {
        "priority": body.priority,
        "cache_salt": server.salt(state.get(TENANT), body.cache_salt),
        "timeout": limit,
    }
    return {name: value for name, value in values.items() if value is not None}


def num_kept(server: Server, ids: list[int], params: SamplingParams) -> int:
    """Tokens of the prompt that truncate_prompt_tokens leaves."""
    asked = params.truncate_prompt_tokens
    if asked is None:
        return len(ids)
    return min(len(ids), asked if asked > 0 else max(1, server.facts.max_model_len - (params.max_tokens or 1)))


def check_size(server: Server, prompts: list[list[int]], params: SamplingParams) -> None:
    """400 for prompts that do not fit with their answers, and for more log-probabilities than fit into memory. What
    else can be wrong with a prompt the engine says."""
    num_entries = 0
    for ids in prompts:
        _check_length(server, ids, params)
        num_entries += _num_logprobs(server, len(ids), params)
    most = server.settings.max_logprob_entries
    if num_entries > most:
        raise invalid(
            f"up to {num_entries} log-probabilities are asked for; this server allows at most {most} in one request: "
            "lower max_tokens, n or logprobs",
            "logprobs",
        )


def _num_logprobs(server: Server, num_prompt: int, params: SamplingParams) -> int:
    """The most log-probabilities that one prompt and its answers can have."""
    room = max(0, server.facts.max_model_len - num_prompt)
    num_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
    total = 0
    for count, tokens in (
        (params.logprobs, num_tokens * params.num_sequences),
        (params.prompt_logprobs, min(num_prompt, server.facts.max_model_len)),
    ):
        if count is not None:
            total += tokens * (1 + (count if count >= 0 else server.facts.vocab_size))
    return total


def _check_length(server: Server, ids: list[int], params: SamplingParams) -> None:
    longest, most, num = server.facts.max_model_len, params.max_tokens, num_kept(server, ids, params)
    if most is not None and num < longest < num + most:
        raise invalid(
            f"this model takes {longest} tokens, prompt and answer together; the prompt has {num} and max_tokens asks "
            f"for {most} more: lower it to {longest - num}",
            "max_tokens",
        )


async def outputs(server: Server, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """(index of the prompt, its newest output) until all are finished. A failed one ends all of them: ApiError."""
    with named(job.fields), server.admission.enter(len(job.prompts) - 1, held=1):  # by `admitted`
        prompts = [{"prompt_token_ids": ids} for ids in job.prompts]
        async with aclosing(server.llm.generate_all(prompts, job.params, **job.routing)) as stream:
            async for index, output in stream:
                if output.finished:
                    _check(output, job)
                yield index, output


def field_names(body: SamplingBody, **own: str) -> dict[str, str]:
    """The body's names for fields of the engine, where they differ."""
    return {**own, **({"structured_outputs": "response_format"} if body.response_format is not None else {})}


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
        if not said.startswith("structured_outputs"):
            raise ApiError(500 if "NaN" in said else 400, f"this request failed: {said}")
        raise invalid(said, job.fields.get("structured_outputs", "structured_outputs"))
    if "abort" in reasons and output.error == _DEADLINE:
        headers = {"x-should-retry": "false"}
        raise ApiError(408, "the request's time limit passed", code="timeout", headers=headers)
    if "abort" in reasons:
        raise ApiError(503, "the server is shutting down", code="shutting_down")
