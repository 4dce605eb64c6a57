"""What completions and chats have in common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RefusedError(ValueError):
    """A field that would change the answer and cannot be honoured."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is not supported: {reason}")
        self.name = name


class Body(BaseModel):
    """A request's body: types are taken as they are (no "0.5" for 0.5), null counts as absent, unknown fields are
    ignored as OpenAI's clients expect. Fields in `refused` would change the answer and cannot be honoured."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())
    refused: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for name, reason in cls.refused.items():
                if values.get(name) not in (None, False, [], {}, ""):
                    raise RefusedError(name, reason)
        return values


def within(low: float, high: float | None = None) -> Any:
    """A field that is absent by default, with the range that the API's description tells. The check, and its words,
    are those of SamplingParams and of the operator's bounds."""
    extra: dict[str, Any] = {"minimum": low} if high is None else {"minimum": low, "maximum": high}
    return Field(default=None, json_schema_extra=extra)


Ints = Annotated[list[int], Field(fail_fast=True)]
"""Refused at the first that is none: a list of a million errors helps nobody."""
Texts = Annotated[list[str], Field(fail_fast=True)]
"""Likewise."""


class StreamOptions(Body):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(default=None, description="usage in every chunk")


class JsonSchema(Body):
    """The schema of a response_format."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer: text, json_object, or json_schema with its schema."""

    type: str
    json_schema: JsonSchema | None = None


OLD_GRAMMARS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object")
REFUSED = {
    **dict.fromkeys(OLD_GRAMMARS, "write it as structured_outputs"),
    "extra_args": "this server runs no code of callers",
    "logits_processors": "this server runs no code of callers",
    "prompt_embeds": "prompts are text or token ids",
    "thinking_token_budget": "no model here is told how long to think",
    "lora_request": "adapters are not served",
}


class SamplingBody(Body):
    """Fields of OpenAI and of vLLM that say how tokens are chosen; their meanings are those of `SamplingParams`."""

    model: str | None = None
    n: int | None = within(1, 256)
    best_of: int | None = within(1, 256)
    temperature: float | None = within(0, 100)
    top_p: float | None = within(0, 1)
    top_k: int | None = within(-1)
    min_p: float | None = within(0, 1)
    seed: int | None = None
    presence_penalty: float | None = within(-2, 2)
    frequency_penalty: float | None = within(-2, 2)
    repetition_penalty: float | None = within(0.01, 100)
    stop: str | Texts | None = None
    stop_token_ids: Ints | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = within(0)
    max_tokens: int | None = within(0)
    truncate_prompt_tokens: int | None = within(-1)
    prompt_logprobs: int | None = within(0)
    logprob_token_ids: Ints | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: Ints | None = None
    bad_words: Texts | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    repetition_detection: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = within(1, 256)
    length_penalty: float | None = within(-10, 10)
    early_stopping: bool | str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: int | None = Field(
        default=None, ge=-(2**31), lt=2**31, description="smaller is served first, where scheduled so"
    )
    cache_salt: str | None = Field(
        default=None, max_length=256, description="prompts share cached blocks only under one salt"
    )
    timeout: float | None = Field(
        default=None, description="seconds after which the request is ended", json_schema_extra={"exclusiveMinimum": 0}
    )
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = Field(default=None, description="logprobs name tokens as token_id:ID")


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int] | None = None
