"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from paged_core.server.protocol.chat import Messages
from paged_core.server.protocol.common import Body, Ints


class TokenizeRequest(Body):
    """A prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(BaseModel):
    """The token ids, and how many a request may have."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Body):
    """Token ids to be read."""

    model: str | None = None
    tokens: Ints
    skip_special_tokens: bool | None = None


class DetokenizeResponse(BaseModel):
    """Their text."""

    prompt: str
