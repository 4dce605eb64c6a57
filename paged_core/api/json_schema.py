"""check_schema: is this JSON value built like a JSON Schema? Shape only: what keywords mean is a compiler's affair."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
"""Schemas nested deeper are refused: grammar compilers recurse, and some end the process when the stack is full."""

TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
ONE_SCHEMA = (
    "additionalProperties",
    "propertyNames",
    "items",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def check_schema(schema: Any) -> str:
    """What is wrong with it, with the place, or "". No schema of a legal shape is refused but for its depth."""
    todo: list[tuple[str, Any, int]] = [("#", schema, 0)]
    while todo:
        place, part, depth = todo.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            return f"{place} must be an object (or true or false), not {type(part).__name__}"
        if depth > MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} schemas deep"
        fault = _own_fault(part)
        if fault:
            return f"{place}: {fault}"
        todo += [(f"{place}/{where}", child, depth + 1) for where, child in children(part)]
    return ""


def children(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """The schemas that stand directly inside `schema`, each with its place in it."""
    found: list[tuple[str, Any]] = []
    for key in SCHEMAS_BY_NAME:
        found += [(f"{key}/{name}"[:100], child) for name, child in (schema.get(key) or {}).items()]
    for key in LISTS_OF_SCHEMAS:
        found += [(f"{key}/{i}", child) for i, child in enumerate(schema.get(key) or [])]
    for key in ONE_SCHEMA:
        if key == "items" and isinstance(schema.get(key), list):  # older drafts: one schema for each position
            found += [(f"{key}/{i}", child) for i, child in enumerate(schema[key])]
        elif key in schema:
            found.append((key, schema[key]))
    return found


def _own_fault(schema: dict[str, Any]) -> str:
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if not isinstance(name, str) or name not in TYPES:
            return f"there is no type {str(name)[:60]!r}"
    for key in SCHEMAS_BY_NAME:
        if not isinstance(schema.get(key, {}), dict):
            return f"{key} must be an object"
    for key in (*LISTS_OF_SCHEMAS, "enum", "required"):
        if not isinstance(schema.get(key, []), list):
            return f"{key} must be a list"
    if any(not isinstance(name, str) for name in schema.get("required", [])):
        return "required must hold strings"
    if schema.get("enum", [0]) == []:
        return "enum is empty: nothing could be written"
    for key in _COUNTS:
        value = schema.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            return f"{key} must be a count, not {str(value)[:60]!r}"
    for key in _BOUNDS:
        value = schema.get(key, 0)
        if not isinstance(value, int | float) or (isinstance(value, bool) and not key.startswith("exclusive")):
            return f"{key} must be a number, not {str(value)[:60]!r}"
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return f"$ref {str(reference)[:100]!r}: only references inside the schema (#/...) are followed"
    return ""
