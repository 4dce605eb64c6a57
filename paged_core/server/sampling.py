"""From a request's body to SamplingParams. What is absent keeps the default; what is out of range is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paged_core.api.output_kind import RequestOutputKind
from paged_core.api.params import SamplingParams
from paged_core.server.errors import invalid

if TYPE_CHECKING:
    from paged_core.server.protocol.common import ResponseFormat, SamplingBody
    from paged_core.server.settings import ServeSettings

_SAME = (
    "n",
    "best_of",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "logprob_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "repetition_detection",
    "structured_outputs",
    "use_beam_search",
    "beam_width",
    "length_penalty",
    "early_stopping",
)
"""Fields of a body that are fields of SamplingParams."""
FORMATS = ("text", "json_object", "json_schema")


def sampling_params(body: SamplingBody, settings: ServeSettings, **own: Any) -> SamplingParams:
    """The parameters that a body asks for; `own` are those that the endpoint itself settles, taken as they are.

    Raises RequestError with the name that SamplingParams has for the field.
    """
    check_bounds(body, settings)
    values = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    form = None if body.response_format is None else structured_form(body.response_format)
    if form is not None:
        if body.structured_outputs is not None:
            raise invalid("response_format and structured_outputs both prescribe the form", "response_format")
        values["structured_outputs"] = form
    kind = RequestOutputKind.CUMULATIVE if body.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(output_kind=kind, **(values | own))


def structured_form(asked: ResponseFormat) -> dict[str, Any] | None:
    """A response_format as fields of StructuredOutputsParams; None for plain text."""
    if asked.type not in FORMATS:
        raise invalid(f"response_format.type must be one of {', '.join(FORMATS)}", "response_format")
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return {"json_object": True}
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        raise invalid("response_format json_schema needs json_schema.schema", "response_format")
    return {"json": asked.json_schema.schema_}


def check_bounds(body: SamplingBody, settings: ServeSettings) -> None:
    """What the operator allows, before anything is built."""
    for name in ("n", "best_of", "beam_width"):
        value = getattr(body, name)
        if value is not None and value > settings.max_n:
            raise invalid(f"{name} is {value}; this server allows at most {settings.max_n}", name)
    if isinstance(body.stop, list) and len(body.stop) > settings.max_stop:
        raise invalid(f"stop has {len(body.stop)} strings; this server allows at most {settings.max_stop}", "stop")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options are for streams: set stream to true", "stream_options")
    for name, form in _forms(body):
        size = len(form) if isinstance(form, str) else len(json.dumps(form))
        if size > settings.max_schema:
            raise invalid(f"{name} has {size} characters; this server allows at most {settings.max_schema}", name)


def _forms(body: SamplingBody) -> list[tuple[str, Any]]:
    """What a grammar would be compiled from, by the field it came in."""
    forms: list[tuple[str, Any]] = []
    if body.structured_outputs is not None:
        forms.append(("structured_outputs", body.structured_outputs))
    if body.response_format is not None and body.response_format.json_schema is not None:
        forms.append(("response_format", body.response_format.json_schema.schema_))
    return forms
