"""Tool calls out of text, however the text is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_core.server.tools.formats import HERMES, LLAMA3_JSON
from paged_core.server.tools.json_value import JsonValue, NotJsonError
from paged_core.server.tools.reader import ToolReader
from paged_core.server.tools.turn import CallPart, Text

NAMES = {"f", "get_weather"}
NESTED = '{"a": {"b": "}\\"{</x>", "c": [1, -2.5e3, null]}}'


def pieces_of(reader, parts):
    """All pieces; asserts what holds for every stream: nothing is empty, calls begin once and in order."""
    pieces = [piece for part in parts for piece in reader.feed(part)] + reader.end()
    begun = -1
    for piece in pieces:
        if isinstance(piece, Text):
            assert piece.text
        elif piece.name is None:
            assert piece.id is None
            assert piece.index == begun
            assert piece.arguments
        else:
            begun += 1
            assert piece.index == begun
            assert piece.id.startswith("call_")
    assert len({piece.id for piece in pieces if isinstance(piece, CallPart) and piece.id}) == begun + 1
    return pieces


def read(form, *parts, names=NAMES, most=None):
    """(content, [(name, arguments)], finish reason after "stop")"""
    reader = ToolReader(form, names, most)
    pieces = pieces_of(reader, parts)
    calls: dict[int, list[str]] = {}
    for piece in pieces:
        if isinstance(piece, CallPart):
            calls.setdefault(piece.index, [piece.name, ""])[1] += piece.arguments
    text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    return text, [tuple(call) for call in calls.values()], reader.finish_reason("stop")


def hermes(*calls):
    return "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>' for name, text in calls)


CALLS = [
    (HERMES, hermes(("f", "{}")), "", [("f", "{}")]),
    (HERMES, hermes(("f", NESTED), ("get_weather", "{ }")), "", [("f", NESTED), ("get_weather", "{ }")]),
    (HERMES, "Let me see.\n" + hermes(("f", NESTED)) + "\n", "Let me see.", [("f", NESTED)]),
    (HERMES, hermes(("f", "{}")) + "\nDone. ", "\nDone. ", [("f", "{}")]),
    (HERMES, hermes(("f", '{"a": "\u00e9\U0001f600"}')), "", [("f", '{"a": "\u00e9\U0001f600"}')]),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
    (HERMES, '<tool_call>{"id": 7 , "name":"f","parameters":{"x":[]}}</tool_call>', "", [("f", '{"x":[]}')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "n": -1.5e2}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}, "arguments": {"b": 1}}', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "f"}', "", [("f", "{}"), ("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call> ok', " ok", [("f", '{"x": 1}')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}', "", [("f", '{"x": 1}')]),
    (HERMES, hermes(("f", '{"code": "a\nb\tc"}')), "", [("f", '{"code": "a\\nb\\tc"}')]),
    (HERMES, "a <tool b <<tool_call>" + '{"name": "f"}</tool_call>', "a <tool b <", [("f", "{}")]),
    (LLAMA3_JSON, '{"name": "f", "parameters": ' + NESTED + "}", "", [("f", NESTED)]),
    (LLAMA3_JSON, ' {"name": "f", "parameters": {}}; {"name": "f", "parameters": {"x": 1}}\n', "", None),
    (LLAMA3_JSON, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [("f", '{"x": 1}')]),
    (LLAMA3_JSON, 'So: <|python_tag|>{"name": "f", "arguments": {}}', "So:", [("f", "{}")]),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLS)
def test_v10_calls_are_read_the_same_in_one_piece_and_by_the_character(form, text, content, calls):
    calls = calls or [("f", "{}"), ("f", '{"x": 1}')]
    assert read(form, text) == (content, calls, "tool_calls")
    assert read(form, *text) == (content, calls, "tool_calls")
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


PLAIN = [
    (HERMES, text)
    for text in (
        "",
        " \n",
        "Hello.\n",
        "<tool_c",
        "a </tool_call> b",
        "<tool_call>",
        "<tool_call>\n",
        "\n<tool_call>{'name': 'f'}</tool_call>",
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "\\ud800"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 1}</tool_call>',
        '<tool_call>{"name": "f",}</tool_call>',
        '<tool_call>{"name": "f"',
        '<tool_call>[{"name": "f"}]</tool_call>',
        '{"name": "f", "arguments": {}}',
        '<tool_call>{"x": ' + "[" * 3000,
        '<tool_call>{"name": "f", "arguments": "' + "[" * 3000 + '"}',
    )
] + [
    (LLAMA3_JSON, text)
    for text in (
        '{"name": "Bob", "age": 3}',
        'I say {"name": "f", "parameters": {}}',
        "{",
        '<|python_tag|>print("hi")',
        '{"a": {"name": "f", "parameters": {}}}',
        "1; 2",
    )
]


@pytest.mark.parametrize(("form", "text"), PLAIN)
def test_what_is_no_call_of_a_declared_function_is_text_to_the_letter(form, text):
    assert read(form, text) == (text, [], "stop")
    assert read(form, *text) == (text, [], "stop")


GARBLED = [
    (hermes(("f", '{"a" 1}')) + " x", " x", '{"a" 1}}\n'),
    (hermes(("f", '{"a": "b}')), "", '{"a": "b}}\\n</tool_call>'),
    ('<tool_call>{"name": "f", "arguments": {"a": tru', "", '{"a": tru'),
    ('<tool_call>{"name": "f", "arguments": {"a": x </tool', "", '{"a": x </tool'),
]


@pytest.mark.parametrize(("text", "content", "arguments"), GARBLED)
def test_a_call_that_has_begun_stays_one_and_does_not_count_as_made(text, content, arguments):
    assert read(HERMES, text) == (content, [("f", arguments)], "stop")
    assert read(HERMES, *text) == (content, [("f", arguments)], "stop")


def test_arguments_come_out_while_they_are_written():
    reader = ToolReader(HERMES, NAMES)
    assert reader.feed('<tool_call>\n{"name": "f", "arguments": ') == []
    (first,) = reader.feed('{"a": "x')
    assert (first.name, first.arguments) == ("f", '{"a": "x')
    assert reader.feed("y") == [CallPart(0, arguments="y")]
    assert reader.feed('"}}\n</tool_call>') == [CallPart(0, arguments='"}')]
    assert reader.end() == []


def test_a_limit_of_calls_leaves_out_the_rest():
    text = hermes(("f", "{}"), ("f", NESTED), ("get_weather", "{}"))
    assert read(HERMES, text, most=1) == ("", [("f", "{}")], "tool_calls")


@pytest.mark.parametrize("reason", ["length", "abort", ""])
def test_only_a_model_that_stopped_by_itself_has_made_its_calls(reason):
    reader = ToolReader(HERMES, NAMES)
    reader.feed(hermes(("f", "{}")))
    reader.end()
    assert reader.finish_reason(reason) == reason
    assert reader.finish_reason("stop") == "tool_calls"


SCRAPS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "<tool",
        "call>",
        "\n",
        " ",
        "; ",
        "{",
        "}",
        '"',
        "\\",
        ":",
        ",",
    ),
    *('{"name": "f"', '"name": ', '"f"', '"g"', '"arguments": {', '"parameters": ', '{"a": "}{\\"', "[1, 2]", "null"),
    *('{"name": "f", "arguments": {}}', hermes(("f", NESTED)), "text", "\u00e9\U0001f600", "\t", "-1", "0", "tru", "<"),
]
TEXTS = st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=14).map("".join)


def cut(text, places):
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([HERMES, LLAMA3_JSON]), TEXTS, st.lists(st.integers(0, 500), max_size=6))
def test_v10_any_text_reads_the_same_however_it_is_cut(form, text, places):
    whole = read(form, text)
    assert read(form, *cut(text, places)) == whole
    assert read(form, *text) == whole


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.lists(st.integers(0, 500), max_size=6),
)
def test_v10_arguments_of_two_calls_arrive_to_the_letter(value, indent, ascii_only, places):
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    text = "So. " + hermes(("f", written), ("get_weather", written))
    expected = ("So.", [("f", written), ("get_weather", written)], "tool_calls")
    assert read(HERMES, *cut(text, places)) == expected


def taken(text):
    """The value's JSON, or None when it is none."""
    value = JsonValue()
    try:
        for char in text:
            if value.take(char) is None:
                return None
    except NotJsonError:
        return None
    return value.text if value.done else None


@settings(max_examples=400, deadline=None)
@given(
    VALUES, st.integers(0, 60), st.sampled_from(["", "x", '"', "\\", ",", "}", "]", "{", "0", "-", "e", "\\u12", "\n"])
)
def test_a_json_value_is_what_the_json_module_takes_for_one(value, place, scrap):
    text = json.dumps([value])
    place %= len(text)
    for changed in (text, text[:place] + scrap + text[place + 1 :], text[:place] + scrap + text[place:]):
        if changed != changed.strip():
            continue
        try:
            expected = json.loads(changed, strict=False, parse_constant=lambda name: [][0])
        except (ValueError, IndexError):
            assert taken(changed) is None
        else:
            if changed[0] == "[":
                assert json.loads(taken(changed)) == expected, "strict: control characters came out as escapes"
