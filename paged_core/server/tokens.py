"""POST /tokenize and /detokenize."""

from __future__ import annotations

from fastapi import APIRouter, Request

from paged_core.server.errors import invalid
from paged_core.server.protocol.chat import ChatRequest
from paged_core.server.protocol.tokens import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from paged_core.server.state import Server, TheServer
from paged_core.server.strict_json import JsonRoute
from paged_core.server.tools.choice import turn_for

router = APIRouter(route_class=JsonRoute)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request, server: TheServer) -> TokenizeResponse:
    """Token ids of a prompt, or of messages as the chat template writes them."""
    server.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("give prompt or messages, and not both", "prompt")
    ids = await server.in_thread(request, _ids, server, body)
    texts = [server.tokenizer.token_text(one) for one in ids] if body.return_token_strs else None
    return TokenizeResponse(count=len(ids), max_model_len=server.facts.max_model_len, tokens=ids, token_strs=texts)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request, server: TheServer) -> DetokenizeResponse:
    """Text of token ids, special ones included unless they are to be skipped."""
    server.check_model(body.model)
    for token in body.tokens:
        if not 0 <= token < server.facts.vocab_size:
            raise invalid(f"token id {token} is outside the vocabulary of {server.facts.vocab_size}", "tokens")
    text = await server.in_thread(request, server.tokenizer.decode, body.tokens, bool(body.skip_special_tokens))
    return DetokenizeResponse(prompt=text)


def _ids(server: Server, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        return server.tokenizer.encode(body.prompt, body.add_special_tokens is not False)
    chat = ChatRequest(
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return turn_for(server, chat).prompt(server.tokenizer)
