"""What `auto` keeps with xgrammar, xgrammar enforces; what it sends to llguidance, llguidance enforces or refuses."""

from __future__ import annotations

import json

import pytest

from paged_core.api.structured import StructuredOutputsParams
from paged_core.errors import RequestError
from paged_core.structured.dialect import FORMATS, beyond_xgrammar
from paged_core.structured.spec import GrammarError, GrammarSpec, grammar_spec

# schema, a value that breaks it
BROKEN = [
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, "[1,1]"),
    ({"type": "array", "contains": {"const": 1}}, "[2]"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}, '{"a":1}'),
    ({"not": {"type": "string"}}, '"a"'),
    ({"if": {"type": "string"}, "then": {"minLength": 3}}, '"a"'),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]}, "9"),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, '{"b":1}'),
    ({"type": "object", "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}]}, '{"b":"x"}'),
    ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, "3"),
    ({"type": "integer", "enum": [1, "a"]}, '"a"'),
    ({"type": "string", "pattern": "^a+$", "minLength": 2}, '"a"'),
    ({"type": "string", "pattern": "^a+$"}, '"b"'),
    ({"type": "string", "pattern": "^[^a]*$"}, '"\n"'),
    ({"type": "string", "minLength": 2}, '"b"'),
    ({"type": "string", "maxLength": 4}, '"\x0b"'),
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, '{"y":1}'),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, '{"y":1}'),
    ({"type": "string", "format": "email", "maxLength": 3}, '"abc@def.com"'),
    ({"type": "string", "format": "idn-email"}, '" b ("'),
    ({"type": "object", "required": ["a"]}, '{"b":1}'),
    ({"type": "array", "items": {"type": ["integer", "null"], "maximum": 2**63}}, f"[{2**63 + 1}]"),
]
# schema, a value that breaks it: xgrammar enforces these
ENFORCED = [
    ({"type": "integer", "multipleOf": 7}, "8"),
    ({"type": "integer", "exclusiveMinimum": 7}, "7"),
    ({"type": "number", "minimum": 7}, "6.5"),
    ({"type": "array", "minItems": 2, "items": {"type": "integer"}}, "[1]"),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, "[1,2]"),
    ({"type": "string"}, '"\x0b"'),
    ({"type": "string"}, '"\n"'),
    ({"type": "object", "propertyNames": {"enum": ["x"]}}, '{"y":1}'),
    ({"type": "object", "maxProperties": 1}, '{"y":1,"x":2}'),
    ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, '{"b":1}'),
    ({"const": {"a": [1, 2]}}, '{"a":[1,3]}'),
    ({"type": "string", "enum": ["a", "b"]}, '"c"'),
    ({"$ref": "#/$defs/a", "description": "x", "$defs": {"a": {"type": "integer"}}}, '"x"'),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, '"x"'),
    ({"allOf": [{"type": "integer", "minimum": 3}]}, "2"),
    ({"type": ["integer", "null"], "minimum": 3}, "1"),
    *[({"type": "string", "format": name}, '" b ("') for name in sorted(FORMATS)],
]


def writes(backends, backend, schema, text):
    """Whether the bytes of `text` can be written, and then the end."""
    spec = GrammarSpec(backend, "json", json.dumps(schema), True)
    matcher = backends[backend].load(spec, backends[backend].compile(spec)).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(256)


@pytest.mark.parametrize(("schema", "broken"), BROKEN, ids=str)
def test_what_xgrammar_would_not_enforce_is_llguidances(backends, schema, broken):
    assert beyond_xgrammar("json", json.dumps({"type": "array", "items": schema})) != ""
    try:
        written = writes(backends, "llguidance", schema, broken)
    except GrammarError:
        written = False  # refused, not ignored
    assert not written


@pytest.mark.parametrize(("schema", "broken"), ENFORCED, ids=str)
def test_what_stays_with_xgrammar_is_enforced(backends, schema, broken):
    assert beyond_xgrammar("json", json.dumps(schema)) == ""
    assert not writes(backends, "xgrammar", schema, broken)


@pytest.mark.parametrize(
    ("kind", "text", "backend"),
    [
        ("regex", "(?i)abc", "llguidance"),
        ("regex", "(?P<x>a)", "llguidance"),
        ("regex", "[]a]", "llguidance"),
        ("regex", "a.b", "llguidance"),
        ("regex", r"a\\.b", "llguidance"),
        ("regex", "[^a]", "llguidance"),
        ("regex", r"\S", "llguidance"),
        ("regex", r"a\.b\\[a-c]\d\w\s", "xgrammar"),
        ("regex", r"(?:ab)+\(?\[]", "xgrammar"),
        ("grammar", 'start: "a"', "llguidance"),
        ("grammar", 'root ::= "a"', "xgrammar"),
        ("choice", '["(?i)"]', "xgrammar"),
        ("json", '{"const": {"not": 1}}', "xgrammar"),
        ("json", '{"properties": {"not": {}}}', "xgrammar"),
    ],
)
def test_auto_looks_at_the_wish(kind, text, backend):
    assert bool(beyond_xgrammar(kind, text)) == (backend == "llguidance")


def test_the_request_then_the_engine_then_the_rule_decide():
    plain, lark = StructuredOutputsParams(regex="a"), StructuredOutputsParams(grammar='start: "a"')
    asked = StructuredOutputsParams(regex="a", backend="llguidance")
    assert grammar_spec(plain, "auto").backend == "xgrammar"
    assert grammar_spec(lark, "auto").backend == "llguidance"
    assert grammar_spec(plain, "llguidance").backend == "llguidance"
    assert grammar_spec(asked, "xgrammar").backend == "llguidance"


@pytest.mark.parametrize("wish", [{"regex": "a"}, {"json": {"uniqueItems": True}}])
def test_a_missing_package_is_told_and_not_replaced(monkeypatch, wish):
    monkeypatch.setattr("paged_core.structured.spec.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'paged-core\[structured\]'") as caught:
        grammar_spec(StructuredOutputsParams(**wish), "auto")
    assert caught.value.field == "structured_outputs"
