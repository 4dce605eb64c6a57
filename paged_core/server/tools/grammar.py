"""Grammars of answers: nothing but valid calls, or text in which every call is valid."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.server.tools.declared import Tool
    from paged_core.server.tools.formats import CallFormat

MOST_CALLS = 32
"""A model that forgets to stop calling is stopped."""

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as templates write it and models have learnt it."""

_OPENS = frozenset(
    (
        *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"),
    )
)
"""Keywords beside which an object cannot simply be closed."""


def call_grammar(form: CallFormat, tools: Sequence[Tool], most: int | None) -> dict[str, Any]:
    """Fields of StructuredOutputsParams: one to `most` calls in the format's own writing, arguments by their schemas.

    A Lark grammar, since it takes a schema for each tool, with `$defs` of its own. It is llguidance's, which enforces
    a schema or refuses it.
    """
    more = min(most or MOST_CALLS, MOST_CALLS) - 1
    calls = f"call ({_literal(form.separator)} call){{0,{more}}}" if more else "call"
    head = "" if form.bare else form.opens + form.margin
    return _fields([f"start: {calls}", *_calls(form, head, tools)])


def answer_grammar(form: CallFormat, tools: Sequence[Tool]) -> dict[str, Any]:
    """Fields of StructuredOutputsParams: any text, in which what begins as a call is one. Arguments of tools that are
    not `strict` are any object."""
    loose = [tool if tool.strict else replace(tool, parameters={"type": "object"}) for tool in tools]
    text = f"/(?s:.+)/ & ~/(?s:.*){re.escape(form.opens)}(?s:.*)/"
    if form.bare:
        rules = [
            f"start: TEXT? | call ({_literal(form.separator)} call)*",
            rf"TEXT: {text} & ~/\s*\{{(?s:.*)/",
        ]
        return _fields([*rules, *_calls(form, "", loose)])
    rules = [
        "start: (opening call)* TEXT?",
        f"opening[suffix={_literal(form.opens)}]: /(?s:.*)/",
        f"TEXT: {text}",
    ]
    return _fields([*rules, *_calls(form, form.margin, loose)])


def _calls(form: CallFormat, head: str, tools: Sequence[Tool]) -> list[str]:
    """The rules of `call`: `head`, the object and the mark that closes it."""
    lines = ["call: " + " | ".join(f"call{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        before = _literal(f'{head}{{"name": "{tool.name}", "{form.arguments}": ')
        lines.append(f"call{i}: {before} arguments{i} {_literal('}' + form.margin + form.closes)}")
        lines.append(f"arguments{i}: %json {json.dumps(closed(tool.parameters) | {'x-guidance': _SPACING})}")
    return lines


def _fields(rules: list[str]) -> dict[str, Any]:
    return {"grammar": "\n".join(rules) + "\n", "backend": "llguidance"}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object, without properties that it does not name unless it speaks of them. Whatever obeys this
    obeys `schema`; a function is not called with arguments that it does not know."""
    listed = schema.get("properties")
    if listed is None or _OPENS & set(schema) or set(schema.get("required", [])) - set(listed):
        return {"type": "object", **schema}
    return {"type": "object", **schema, "additionalProperties": False}


def _literal(text: str) -> str:
    """A string of Lark."""
    return json.dumps(text)
