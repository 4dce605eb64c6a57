"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from paged_core.server.answers import Head
from paged_core.server.chat_answers import ChatAnswer, ChatShape
from paged_core.server.errors import invalid
from paged_core.server.generation import Job, check_size, field_names, final_outputs, named, outputs, routing
from paged_core.server.presence import while_connected
from paged_core.server.protocol.chat import ChatRequest, ChatResponse
from paged_core.server.replies import json_response, streaming
from paged_core.server.sampling import sampling_params
from paged_core.server.sse import open_stream
from paged_core.server.state import Server, TheServer, admitted
from paged_core.server.strict_json import JsonRoute
from paged_core.server.tools.choice import turn_for
from paged_core.server.tools.turn import Turn

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses={200: {"model": ChatResponse, "content": {"text/event-stream": {}}}},
    dependencies=[Depends(admitted)],
)
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
    long = body.max_completion_tokens is not None
    fields = field_names(
        body, prompt="messages", logprobs="top_logprobs", **({"max_tokens": "max_completion_tokens"} if long else {})
    )
    own: dict[str, Any] = {
        "logprobs": _num_logprobs(body),
        "max_tokens": body.max_completion_tokens if long else body.max_tokens,
    }
    own |= turn.params()
    form = turn.form()
    if form is not None:
        own["structured_outputs"] = form
        fields["structured_outputs"] = "tools"
    with named(fields):
        params = sampling_params(body, server.settings, **own)
        ids = await server.in_thread(request, turn.prompt, server.tokenizer)
    check_size(server, [ids], params)
    return Job([ids], params, routing(server, request, body), fields)


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
