"""call_grammar: the answers that are nothing but valid calls of given tools."""

from __future__ import annotations

import json
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
    opens = "" if form.bare else form.opens + form.margin
    closes = form.margin + form.closes
    choice = " | ".join(f"call{i}" for i in range(len(tools)))
    lines = [f"start: call ({_literal(form.separator)} call){{0,{more}}}" if more else "start: call", f"call: {choice}"]
    for i, tool in enumerate(tools):
        head = opens + f'{{"name": "{tool.name}", "{form.arguments}": '
        lines.append(f"call{i}: {_literal(head)} arguments{i} {_literal('}' + closes)}")
        lines.append(f"arguments{i}: %json {json.dumps(closed(tool.parameters) | {'x-guidance': _SPACING})}")
    return {"grammar": "\n".join(lines) + "\n", "backend": "llguidance"}


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
