"""/v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from paged_core.server.protocol.common import REFUSED, Ints, SamplingBody, Texts, Usage, within


class CompletionRequest(SamplingBody):
    """A prompt, or a list of prompts, to be continued."""

    refused: ClassVar[dict[str, str]] = {**REFUSED, "suffix": "models here continue text and do not fill gaps"}

    prompt: str | Ints | Texts | Annotated[list[Ints], Field(fail_fast=True)]
    echo: bool | None = None
    logprobs: int | None = within(0)
    add_special_tokens: bool | None = None


class CompletionLogprobs(BaseModel):
    """Log-probabilities in the form of OpenAI's completions."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class CompletionChoice(BaseModel):
    """One continuation, or in a stream what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """The answer, or a chunk of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
