"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paged_core.server.answers import Head
from paged_core.server.chat_answers import ChatAnswer, ChatShape
from paged_core.server.errors import invalid
from paged_core.server.generation import Job, check_length, final_outputs, outputs, routing
from paged_core.server.presence import while_connected
from paged_core.server.protocol.chat import ChatRequest, ChatResponse
from paged_core.server.replies import json_response, streaming
from paged_core.server.sampling import sampling_params
from paged_core.server.sse import open_stream
from paged_core.server.state import Server, TheServer
from paged_core.server.strict_json import JsonRoute
from paged_core.server.tools.choice import turn_for
from paged_core.server.tools.turn import Turn

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions", response_model=None, responses={200: {"model": ChatResponse}})
async def create_chat_completion(body: ChatRequest, request: Request, server: TheServer) -> Response:
    """Answer a conversation."""
    model = server.check_model(body.model)
    turn = turn_for(server, body)
    job = await while_connected(request, _job(server, request, body, turn))
    shape = ChatShape(
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        show_prompt_logprobs=body.prompt_logprobs is not None,
        show_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    answer = ChatAnswer(Head.new("chatcmpl", kind, model), shape, turn.reader)
    if body.stream:
        return await open_stream(request, answer.chunks(outputs(server, job), streaming(body)))
    (output,) = await while_connected(request, final_outputs(server, job))
    return json_response(answer.whole(output))


async def _job(server: Server, request: Request, body: ChatRequest, turn: Turn) -> Job:
    own: dict[str, Any] = {"logprobs": _num_logprobs(body), "structured_outputs": _form(body, turn)}
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(body, server.settings, **own)
    params.max_tokens = most
    ids = await server.in_thread(turn.prompt, server.tokenizer)
    check_length(server, ids, params)
    field = "response_format" if body.response_format is not None else "structured_outputs"
    return Job([ids], params, routing(server, request, body), field)


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _form(body: ChatRequest, turn: Turn) -> dict[str, Any] | None:
    """The form that a tool call forces. It leaves no room for another."""
    form = turn.form()
    if form is not None and (body.response_format or body.structured_outputs):
        raise invalid("the tool call already has a form; response_format does not go with it", "response_format")
    return form
