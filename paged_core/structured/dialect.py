"""beyond_xgrammar: what xgrammar takes and then does not enforce. Such wishes go to llguidance: it enforces or refuses.

Observed with xgrammar 0.2.9 and llguidance 1.9.1; tests/structured/test_dialect.py feeds each entry to both.
"""

from __future__ import annotations

import json
import re
from typing import Any

from paged_core.api.json_schema import children

FORMATS = frozenset(
    (
        *("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)
"""Formats that xgrammar enforces."""

_IGNORED = (
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "not",
    "if",
    "then",
    "else",
    "oneOf",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_RAW = ("minLength", "maxLength", "pattern", "patternProperties")
_NOTES = frozenset(
    {"title", "description", "default", "examples", "$comment", "$schema", "$id", "$defs", "definitions"}
)
_COMBINERS = ("$ref", "anyOf", "enum", "const")
_LARGEST = 2**63 - 1
_GROUP = re.compile(r"\(\?(?!:)|\[\^?\]")
_NEGATION = re.compile(r"\[\^|\\[DWSP]|\.")
_LITERAL = re.compile(r"\\[^DWSP]")


def beyond_xgrammar(kind: str, text: str) -> str:
    """Why this needs llguidance, in a few words, or "": a function of the wish alone, whatever is installed."""
    if kind == "regex":
        bare = _LITERAL.sub("", text)
        if _GROUP.search(bare):
            return "groups (?...) and sets that begin with ] are unknown to xgrammar"
        return "xgrammar lets broken UTF-8 pass as any character" if _NEGATION.search(bare) else ""
    if kind == "grammar" and "::=" not in text:
        return "Lark grammars are llguidance's"
    if kind != "json":
        return ""
    todo = [json.loads(text)]
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict):
            reason = _ignored(schema)
            if reason:
                return reason
            todo += [child for _, child in children(schema)]
    return ""


def _ignored(schema: dict[str, Any]) -> str:
    for key in _IGNORED:
        if key in schema and (key, schema[key]) != ("uniqueItems", False):
            return f"xgrammar does not enforce {key}"
    if len(schema.get("allOf", [])) > 1:
        return "xgrammar does not enforce allOf"
    said = set(schema) - _NOTES
    for key in _COMBINERS:
        if key in schema and len(said) > (2 if key in ("enum", "const") and _redundant_type(schema) else 1):
            return f"xgrammar does not enforce what stands beside {key}"
    for key in _RAW:
        if key in schema:
            return f"xgrammar lets control characters or broken UTF-8 into strings with {key}"
    if schema.get("format", "date") not in FORMATS:
        return f"xgrammar does not enforce the format {str(schema['format'])[:40]}"
    if set(schema.get("required", [])) - set(schema.get("properties", {})):
        return "xgrammar does not enforce required properties that properties does not name"
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if "integer" in schema.get("type", ()) and abs(schema.get(key, 0)) > _LARGEST:
            return f"xgrammar has no integers as large as this {key}"
    return ""


def _redundant_type(schema: dict[str, Any]) -> bool:
    """Whether a `type` beside `enum` or `const` is that of every value, so that nothing is lost by ignoring it."""
    types = schema.get("type")
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    return isinstance(types, str) and all(_has_type(value, types) for value in values)


def _has_type(value: Any, name: str) -> bool:
    kinds: dict[str, Any] = {"string": str, "object": dict, "array": list, "boolean": bool, "null": type(None)}
    if name in kinds:
        return isinstance(value, kinds[name])
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (name == "number" and isinstance(value, float))
