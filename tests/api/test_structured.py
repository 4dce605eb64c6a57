"""What a form of the answer may look like; everything wrong that needs no compiler is refused here (cases T01, T05)."""

from __future__ import annotations

import json

import pytest

from paged_core.api.params import SamplingParams
from paged_core.api.structured import MAX_CHARS, StructuredOutputsParams
from paged_core.errors import RequestError

DEEP = '{"type":"array","items":' * 5000 + "{}" + "}" * 5000


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({}, "given: none"),
        ({"json": None}, "given: none"),
        ({"json_object": False}, "given: none"),
        ({"regex": "a", "json": {}}, "given: json, regex"),
        ({"jsn": {}}, "did you mean 'json'"),
        ({"json": "{"}, "not JSON"),
        ({"json": "[1]"}, "must be a JSON Schema"),
        ({"json": '{"maximum": NaN}'}, "NaN is no JSON number"),
        ({"json": '{"maximum": 1e400}'}, "not a JSON Schema"),
        ({"json": {"x": {1, 2}}}, "not a JSON Schema"),
        ({"json": {"properties": {"a": "string"}}}, "#/properties/a must be an object"),
        ({"json": {"properties": ["a"]}}, "properties must be an object"),
        ({"json": {"anyOf": {"type": "string"}}}, "anyOf must be a list"),
        ({"json": {"type": "strin"}}, "there is no type 'strin'"),
        ({"json": {"type": ["string", 1]}}, "there is no type '1'"),
        ({"json": {"items": {"minItems": -1}}}, "#/items: minItems must be a count"),
        ({"json": {"maxLength": "9"}}, "maxLength must be a count"),
        ({"json": {"maximum": "9"}}, "maximum must be a number"),
        ({"json": {"enum": []}}, "enum is empty"),
        ({"json": {"required": [1]}}, "required must hold strings"),
        ({"json": {"$ref": "http://example.com/schema"}}, "only references inside the schema"),
        ({"json": DEEP}, "nested"),
        ({"json": nested(65)}, "nested more than 64"),
        ({"json": {"enum": ["x" * MAX_CHARS]}}, "characters"),
        ({"regex": ""}, "regex has 0 characters"),
        ({"regex": "("}, "1 parenthesis never closed"),
        ({"regex": "a)"}, "was never opened"),
        ({"regex": "[a"}, "is never closed"),
        ({"regex": "a\\"}, "lone backslash"),
        ({"regex": "(*a)"}, "nothing to repeat"),
        ({"regex": 5}, "regex must be text"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"choice": []}, "choice must be a list"),
        ({"choice": "yes"}, "choice must be a list"),
        ({"choice": ["a", ""]}, "not empty"),
        ({"choice": ["a", 1]}, "not empty"),
        ({"grammar": "nothing"}, "has no rule"),
        ({"json_object": 1}, "json_object must be"),
        ({"regex": "a", "backend": "outlines"}, "backend must be one of"),
        ({"regex": "a", "disable_any_whitespace": "no"}, "disable_any_whitespace must be"),
        ("json", "an object with one of"),
        ([], "an object with one of"),
    ],
)
def test_wrong_wishes_name_the_field_and_the_fault(wish, said):
    with pytest.raises(RequestError, match="structured_outputs") as caught:
        SamplingParams.from_mapping({"structured_outputs": wish})
    assert caught.value.field == "structured_outputs"
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "wish",
    [
        {"json": {}},
        {"json": {"properties": {"a": True, "type": {"type": "string"}}}},
        {"json": {"items": [{"type": "string"}], "additionalProperties": False}},
        {"json": {"properties": {"enum": {"enum": [1]}, "required": {"type": "null"}}}},
        {"json": nested(64)},
        {"json": '{"maximum": 1000000000000000000000000000000}'},
        {"regex": "[]a]|[^]]|\\(|\\[|a{2,}|(?:b)*"},
        {"choice": ["(", "\\", "\n"]},
        {"grammar": 'root ::= "a"'},
        {"json_object": True},
    ],
)
def test_odd_but_legal_wishes_pass(wish):
    assert SamplingParams(structured_outputs=wish).structured_outputs.kind == next(iter(wish))


def test_equal_wishes_have_equal_text_and_repeated_choices_count_once():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert StructuredOutputsParams(json=schema).text == StructuredOutputsParams(json=json.dumps(schema, indent=4)).text
    assert StructuredOutputsParams(choice=["b", "a", "b"]).text == '["b", "a"]'


def test_the_order_of_properties_is_kept():
    assert StructuredOutputsParams(json={"properties": {"b": {}, "a": {}}}).text.index('"b"') == 16


def test_a_grammar_cannot_go_on_after_its_end():
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured_outputs={"regex": "a"}, ignore_eos=True)
    assert caught.value.field == "ignore_eos"
