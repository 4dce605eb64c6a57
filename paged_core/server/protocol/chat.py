"""/v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from paged_core.server.protocol.common import REFUSED, SamplingBody, Texts, Usage, within

_PART = {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {**_PART, "required": ["type", "text"]}}]},
    },
    "required": ["role", "content"],
}
Messages = Annotated[
    list[dict[str, Any]],
    Field(fail_fast=True),
    WithJsonSchema({"type": "array", "items": _MESSAGE, "minItems": 1}, mode="validation"),
]
"""Checked by `conversation`, which has better words for what is wrong; described here."""


class ChatRequest(SamplingBody):
    """A conversation to be gone on with. Messages and tools are checked by `conversation` and the tool formats."""

    refused: ClassVar[dict[str, str]] = {
        **REFUSED,
        "functions": "write them as tools",
        "function_call": "write it as tool_choice",
        "audio": "answers are text",
        "echo": "a chat answers with a message of its own",
        "chat_template": "templates come with the model",
        "media_io_kwargs": "messages are text",
        "mm_processor_kwargs": "messages are text",
        "web_search_options": "this server asks nobody",
    }

    messages: Messages
    max_completion_tokens: int | None = within(1)
    logprobs: bool | None = None
    top_logprobs: int | None = within(0)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: Texts | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None


class TopLogprob(BaseModel):
    """One of the most probable tokens at a position."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """A sampled token, with those it was drawn among."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(BaseModel):
    """Log-probabilities in the form of OpenAI's chats."""

    content: list[TokenLogprob] = []
    refusal: None = None


class FunctionCall(BaseModel):
    """Name and arguments (JSON text) of a call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(BaseModel):
    """A call of a tool."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(BaseModel):
    """The assistant's message, whole."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatResponse(BaseModel):
    """The answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
