"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from paged_core.server.answers import CompletionAnswer, CompletionShape, Echo, Head
from paged_core.server.errors import invalid
from paged_core.server.generation import (
    Job,
    check_size,
    field_names,
    final_outputs,
    named,
    num_kept,
    outputs,
    routing,
)
from paged_core.server.presence import while_connected
from paged_core.server.protocol.completions import CompletionRequest, CompletionResponse
from paged_core.server.replies import json_response, streaming
from paged_core.server.sampling import sampling_params
from paged_core.server.sse import open_stream
from paged_core.server.state import Server, TheServer, admitted
from paged_core.server.strict_json import JsonRoute

router = APIRouter(route_class=JsonRoute)
DEFAULT_MAX_TOKENS = 16
"""OpenAI's for completions; chats end by themselves."""


@router.post(
    "/v1/completions",
    response_model=None,
    responses={200: {"model": CompletionResponse, "content": {"text/event-stream": {}}}},
    dependencies=[Depends(admitted)],
)
async def create_completion(body: CompletionRequest, request: Request, server: TheServer) -> Response:
    """Continue a prompt (text or token ids), or each of a list of prompts."""
    model = server.check_model(body.model)
    job, shape = await while_connected(request, _job(server, request, body))
    answer = CompletionAnswer(Head.new("cmpl", "text_completion", model), shape, server.tokenizer)
    if body.stream:
        return await open_stream(request, answer.chunks(outputs(server, job), streaming(body)))
    return json_response(answer.whole(await while_connected(request, final_outputs(server, job))))


async def _job(server: Server, request: Request, body: CompletionRequest) -> tuple[Job, CompletionShape]:
    prompts = _prompts(body, server)
    fields = field_names(body)
    with named(fields):
        params = sampling_params(body, server.settings, **_own_params(body))
        ids = await server.in_thread(request, _encoded, server, prompts, body.add_special_tokens is not False)
        check_size(server, ids, params)
    kept = [one[len(one) - num_kept(server, one, params) :] for one in ids]
    shape = CompletionShape(
        n=params.n,
        num_logprobs=body.logprobs,
        echoes=await server.in_thread(request, _echoes, server, prompts, ids, kept) if body.echo else None,
        special_shown=body.skip_special_tokens is False,
        hide_answer=_only_prompt(body),
        show_prompt_logprobs=body.prompt_logprobs is not None,
        show_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )
    return Job(ids, params, routing(server, request, body), fields), shape


def _only_prompt(body: CompletionRequest) -> bool:
    """Whether no answer is wanted: the engine still draws one token, which is not shown."""
    return bool(body.echo) and body.max_tokens == 0


def _own_params(body: CompletionRequest) -> dict[str, Any]:
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    own: dict[str, Any] = {"logprobs": body.logprobs, "max_tokens": 1 if _only_prompt(body) else most}
    if body.echo and body.logprobs is not None:
        own["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return own


def _prompts(body: CompletionRequest, server: Server) -> list[Any]:
    """The prompts one by one, each text or token ids."""
    given = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise invalid("prompt is an empty list: there is nothing to continue", "prompt")
    if len(given) > server.settings.max_prompts:
        most = server.settings.max_prompts
        raise invalid(f"prompt has {len(given)} entries; this server allows at most {most}", "prompt")
    return list(given)


def _encoded(server: Server, prompts: list[Any], special: bool) -> list[list[int]]:
    tokenizer = server.tokenizer
    return [tokenizer.encode(one, special) if isinstance(one, str) else one for one in prompts]


def _echoes(server: Server, prompts: list[Any], ids: list[list[int]], kept: list[list[int]]) -> list[Echo]:
    """The prompts as text: as given, or what is kept of them. Ids that no token has are the engine's to refuse."""
    known = range(server.facts.vocab_size)
    return [
        Echo(given, special_shown=False)
        if isinstance(given, str) and len(whole) == len(part)
        else Echo(server.tokenizer.decode([token for token in part if token in known], False), special_shown=True)
        for given, whole, part in zip(prompts, ids, kept, strict=True)
    ]
