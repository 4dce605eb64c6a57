"""Dialect: how the model that is served wants to be told of tools, and how it calls them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError
from paged_core.server.tools.formats import FORMATS, HERMES, LLAMA3_JSON, CallFormat

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer

_SHOWN, _CALLED, _RESULT = "paged_probe_shown", "paged_probe_called", "paged_probe_result"
_TOOL = {
    "type": "function",
    "function": {
        "name": _SHOWN,
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string", "description": "Place."}},
            "required": ["where"],
        },
    },
}
_USER = {"role": "user", "content": "Hello"}
_ARGUMENTS = re.compile(r'"where"\s*:\s*"Rome"')
_WRITINGS = (
    (HERMES, re.compile(rf'<tool_call>\s*\{{[^<]*"{_CALLED}"')),
    (LLAMA3_JSON, re.compile(rf'\{{\s*"name"\s*:\s*"{_CALLED}"\s*,\s*"parameters"\s*:')),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How tools are spoken of.

    form          how calls are written
    native        the template shows tools, calls and results itself; otherwise they are written into the messages
    objects       a native template wants the arguments of calls as objects; otherwise as JSON text
    single        a native template refuses messages with more than one call
    system        the template takes a system message
    hides_marks   the tokenizer counts the format's marks among the control tokens, which answers do not show
    """

    form: CallFormat = HERMES
    native: bool = False
    objects: bool = False
    single: bool = False
    system: bool = True
    hides_marks: bool = False

    def describe(self) -> str:
        """One line for the log."""
        whose = "the model's chat template" if self.native else "the server, since the model's chat template does not"
        return f"tools: calls are written as {self.form.name}; they are shown to the model by {whose}"


def dialect_of(tokenizer: Tokenizer, wanted: str = "auto") -> Dialect:
    """The dialect of a model, found by letting its template write a conversation with tools.

    `wanted` is the name of a format, or "auto": that in which the template writes calls; Hermes, shown by the server,
    where it writes none or writes them in no known format.
    """
    objects, text = _probe(tokenizer)
    known = next((form for form, writing in _WRITINGS if writing.search(text)), None)
    form = FORMATS[wanted] if wanted != "auto" else known or HERMES
    native = bool(text) and (known is not None or wanted != "auto")
    return Dialect(
        form,
        native,
        native and objects,
        single=native and not _written(tokenizer, _history(objects, num_calls=2)),
        system=bool(_written(tokenizer, [{"role": "system", "content": "Be brief."}, _USER])),
        hides_marks=any(_is_control(tokenizer, mark) for mark in (form.opens, form.closes)),
    )


def _probe(tokenizer: Tokenizer) -> tuple[bool, str]:
    """Whether arguments must be objects, and a conversation with a call; "" when the template leaves out the tools,
    the call or its result."""
    if _SHOWN not in _written(tokenizer, [_USER]):
        return False, ""
    for objects in (True, False):
        text = _written(tokenizer, _history(objects))
        if _CALLED in text and _RESULT in text and _ARGUMENTS.search(text):
            return objects, text
    return False, ""


def _history(objects: bool, num_calls: int = 1) -> list[dict[str, Any]]:
    arguments = {"where": "Rome"} if objects else '{"where": "Rome"}'
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": _CALLED, "arguments": arguments}}
        for i in range(num_calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": _RESULT} for call in calls]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _written(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
    """What the template writes; "" where it refuses."""
    try:
        return tokenizer.apply_chat_template(messages, tools=[_TOOL])
    except RequestError:
        return ""


def _is_control(tokenizer: Tokenizer, mark: str) -> bool:
    ids = tokenizer.encode(mark, add_special_tokens=False) if mark else []
    return any(tokenizer.is_special(token) for token in ids)
