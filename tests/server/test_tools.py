"""Chats with tools over HTTP: what is asked, what is answered in both modes, what is refused (cases V10, V12)."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from paged_core.testing.tokenizer import ByteTokenizer

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
LONG = {"max_model_len": 2048, "num_blocks": 1024}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["C", "F"]},
        "days": {"$ref": "#/$defs/days"},
    },
    "required": ["city", "days"],
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 14}},
}


def tool(name, parameters=None, **more):
    function = {"name": name, **({} if parameters is None else {"parameters": parameters}), **more}
    return {"type": "function", "function": function}


def named(name):
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool("get_weather", WEATHER, description="Weather of a city"), tool("now")]
ASK = {"messages": USER, "tools": TOOLS, "temperature": 0}
NESTED = '{"city": "}\\"{", "days": [{"a": "\u00e9\U0001f600"}, {}]}'
TWO = [
    "Let me ",
    "see.\n<tool",
    '_call>\n{"na',
    'me": "get_weather", "arguments": ',
    NESTED[:9],
    NESTED[9:30],
    NESTED[30:],
    "}\n</tool_call",
    '>\n<tool_call>\n{"name": "now", "arg',
    'uments": {}}\n</tool_call>',
]


def answer(response):
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json(), strict=True)
    return response.json()["choices"]


def told(choice):
    """(content, [(name, arguments)], finish reason) of a whole choice."""
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    names = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return message["content"] or "", names, choice["finish_reason"]


def told_in_parts(events, index=0):
    """The same of a stream, in which every delta says something and a call is introduced once."""
    assert events[-1] == "[DONE]"
    content, calls, reason = "", [], None
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event, strict=True)
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            assert reason is None, "nothing follows the end"
            delta, reason = choice["delta"], choice["finish_reason"]
            content += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(calls)
                    assert call["type"] == "function"
                    calls.append([call["function"]["name"], ""])
                else:
                    assert call["index"] == len(calls) - 1
                    assert call["function"]["arguments"]
                    assert "name" not in call["function"]
                calls[-1][1] += call["function"]["arguments"]
    return content, [tuple(call) for call in calls], reason


def both(server, body):
    """What a body is answered with, the same in both modes."""
    whole = [told(choice) for choice in answer(server.post(PATH, body))]
    events = server.stream(PATH, body)
    assert [told_in_parts(events, i) for i in range(len(whole))] == whole
    return whole


def assert_valid(name, arguments):
    """The arguments obey the schema of TOOLS, and there are none that it does not name."""
    if name == "now":
        assert arguments == {}
        return
    assert {"city", "days"} <= set(arguments) <= {"city", "days", "unit"}
    assert isinstance(arguments["city"], str)
    assert len(arguments["city"]) <= 6
    assert type(arguments["days"]) is int
    assert 1 <= arguments["days"] <= 14
    assert arguments.get("unit", "C") in ("C", "F")


def refused(response, param):
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    return error["message"]


def test_v10_two_calls_with_nested_arguments_are_the_same_in_both_modes(house):
    server = house(TWO, shape=LONG)
    calls = [("get_weather", NESTED), ("now", "{}")]
    assert both(server, ASK) == [("Let me see.", calls, "tool_calls")]
    assert both(server, {**ASK, "n": 2}) == [("Let me see.", calls, "tool_calls")] * 2
    assert both(server, {**ASK, "parallel_tool_calls": False}) == [("Let me see.", calls[:1], "tool_calls")]


def test_calls_without_words_have_no_content(house):
    (choice,) = answer(house(["\n<tool_call>\n", '{"name": "now"}\n', "</tool_call>"], shape=LONG).post(PATH, ASK))
    assert choice["message"]["content"] is None
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]


def test_an_answer_without_calls_is_text(house):
    server = house(["Hi ", "<tool_call>", "{'name': 'now'}", "</tool_call>"], shape=LONG)
    assert both(server, ASK) == [("Hi <tool_call>{'name': 'now'}</tool_call>", [], "stop")]


def test_arguments_arrive_before_the_call_is_complete(house):
    server = house(TWO, shape=LONG)

    async def main():
        server.gate.shut()
        async with server.call(PATH, {**ASK, "stream": True}) as call:
            while "[DONE]" not in call.text:  # a step at a time: a reader that is slower gets several in one delta
                await asyncio.sleep(0.002)
                if server.gate.waiting.is_set():
                    server.gate.allow(1)
            return server.events(call.text)

    deltas = [choice["delta"] for event in asyncio.run(main())[:-1] for choice in event["choices"]]
    first = [call for delta in deltas for call in delta.get("tool_calls", []) if call["index"] == 0]
    assert len(first) > 2


def test_tokens_of_marks_are_counted_and_their_log_probabilities_shown_once(house):
    server = house(TWO, shape=LONG)
    body = {**ASK, "return_token_ids": True}
    (choice,) = answer(server.post(PATH, body))
    events = server.stream(PATH, body)
    streamed = [one for event in events[:-1] for part in event["choices"] for one in part.get("token_ids", [])]
    assert streamed == choice["token_ids"]
    assert len(streamed) == len(TWO) + 1


@pytest.mark.parametrize("max_tokens", [3, 6, 9])
def test_a_limit_inside_a_call_is_told_as_such(house, max_tokens):
    ((content, calls, reason),) = both(house(TWO, shape=LONG), {**ASK, "max_tokens": max_tokens})
    assert reason == "length"
    assert content.startswith("Let me see.")
    assert len(calls) == (max_tokens > 4)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "now"}),
        (named("get_weather"), {"get_weather"}),
        (named("now"), {"now"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("now"), named("now")]}},
            {"now"},
        ),
    ],
    ids=["required", "named", "named_without_parameters", "allowed"],
)
@pytest.mark.parametrize("form", ["hermes", "llama3_json"])
def test_v12_a_required_call_is_valid_whatever_the_model_would_like_to_say(house, form, choice, names):
    server = house(shape=LONG, tool_format=form)
    for seed in range(3):
        body = {**ASK, "tool_choice": choice, "temperature": 1, "seed": seed, "parallel_tool_calls": False}
        for content, calls, reason in both(server, body):
            assert (content, len(calls), reason) == ("", 1, "tool_calls")
            for name, arguments in calls:
                assert name in names
                assert_valid(name, json.loads(arguments))


def test_a_strict_tool_is_called_by_a_model_that_likes_to_as_its_schema_says(house):
    tokenizer = ByteTokenizer(["<tool_call>"])
    server = house(shape={**LONG, "tokenizer": tokenizer})
    strict = [tool("get_weather", WEATHER, strict=True), tool("now", strict=False)]
    body = {**ASK, "tools": strict, "temperature": 1, "max_tokens": 150, "stop": ["</tool_call>"]}
    body |= {"logit_bias": {str(tokenizer.id_of("<tool_call>")): 100}}
    names = set()
    for seed in range(4):
        ((content, calls, reason),) = both(server, {**body, "seed": seed})
        assert (content, reason) == ("", "tool_calls")
        ((name, arguments),) = calls
        names.add(name)
        if name == "get_weather":
            assert_valid(name, json.loads(arguments))
    assert "get_weather" in names


def test_v12_several_required_calls(house):
    server = house(shape=LONG)
    body = {**ASK, "tools": TOOLS[1:], "tool_choice": "required", "temperature": 1}
    counts = set()
    for seed in range(6):
        ((content, calls, reason),) = both(server, {**body, "seed": seed, "max_tokens": 400})
        assert (content, reason) == ("", "tool_calls")
        assert set(calls) == {("now", "{}")}
        counts.add(len(calls))
    assert max(counts) > 1


def test_v12_none_is_text_in_both_modes_and_shows_no_tools(house):
    server = house(TWO, shape=LONG)
    assert both(server, {**ASK, "tool_choice": "none"}) == [("".join(TWO), [], "stop")]
    plain = server.post(PATH, {"messages": USER, "temperature": 0}).json()["usage"]["prompt_tokens"]
    counts = [
        server.post(PATH, {**ASK, "tool_choice": choice}).json()["usage"]["prompt_tokens"]
        for choice in ("none", "auto")
    ]
    assert counts[0] == plain
    assert counts[1] > plain + 300


def test_a_prescribed_form_leaves_no_room_for_calls(house):
    server = house(shape=LONG)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "<tool_call>"}}}
    assert both(server, {**ASK, "response_format": form}) == [('"<tool_call>"', [], "stop")]
    like_a_call = '<tool_call>{"name": "now"}</tool_call>'
    assert both(server, {**ASK, "structured_outputs": {"choice": [like_a_call]}}) == [(like_a_call, [], "stop")]
    refused(server.post(PATH, {**ASK, "response_format": form, "tool_choice": "required"}), "response_format")
    regex = {"structured_outputs": {"regex": "a"}, "tool_choice": named("now")}
    message = refused(server.post(PATH, {**ASK, **regex}), "structured_outputs")
    assert "form of its own" in message
    text = {"response_format": {"type": "text"}, "tool_choice": named("now")}
    assert both(server, {**ASK, **text}) == [("", [("now", "{}")], "tool_calls")]


def test_tokenize_counts_the_tools_that_a_chat_shows(house):
    server = house(["Hi"], shape=LONG)
    count = server.post("/tokenize", {"messages": USER, "tools": TOOLS}).json()["count"]
    assert count == server.post(PATH, ASK).json()["usage"]["prompt_tokens"]
    refused(server.post("/tokenize", {"messages": USER, "tools": [{}]}), "tools")


CANNOT = {"type": "object", "properties": {"a": {"not": {}}}}


def test_a_schema_that_cannot_be_enforced_is_refused_only_where_it_must_be(house):
    server = house(["Hi"], shape=LONG)
    body = {**ASK, "tools": [tool("f", CANNOT)]}
    for stream in (False, True):
        message = refused(server.post(PATH, {**body, "tool_choice": "required", "stream": stream}), "tools")
        assert "not" in message
    assert both(server, body) == [("Hi", [], "stop")]


BAD_TOOLS = [
    "x",
    {},
    [1],
    [{}],
    [{"type": "function"}],
    [{"type": "custom", "custom": {"name": "f"}}],
    [{"type": "function", "function": "f"}],
    [tool(3)],
    [tool("")],
    [tool("a b")],
    [tool("a" * 129)],
    [tool("f", description=3)],
    [tool("f", strict="yes")],
    [tool("f", 3)],
    [tool("f", {"type": "string"})],
    [tool("f", {"type": "nonsense"})],
    [tool("f", {"properties": {"a": 3}})],
    [tool("f"), tool("f")],
    [tool(f"f{i}") for i in range(5)],
    [tool("f", description="x" * 3000)],
]


@pytest.mark.parametrize("tools", BAD_TOOLS, ids=range(len(BAD_TOOLS)))
def test_t01_tools_that_are_none_are_refused(house, tools):
    server = house(["Hi"], shape=LONG, max_tools=4, max_schema=2000)
    refused(server.post(PATH, {**ASK, "tools": tools}), "tools")


BAD_CHOICES = [
    "any",
    "",
    3,
    [],
    {},
    {"type": "function"},
    {"type": "function", "function": {"name": 3}},
    {"type": "function", "name": "now"},
    {"type": "custom", "custom": {"name": "now"}},
    named("nobody"),
    {"type": "allowed_tools"},
    {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [named("now")]}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [3]}},
]


@pytest.mark.parametrize("choice", BAD_CHOICES, ids=range(len(BAD_CHOICES)))
def test_t01_choices_that_are_none_are_refused(house, choice):
    refused(house(["Hi"], shape=LONG).post(PATH, {**ASK, "tool_choice": choice}), "tool_choice")


def test_a_choice_needs_tools(house):
    server = house(["Hi"], shape=LONG)
    for tools in ({}, {"tools": None}, {"tools": []}):
        body = {"messages": USER, "temperature": 0, **tools}
        for choice in ("auto", "required", named("now")):
            refused(server.post(PATH, {**body, "tool_choice": choice}), "tool_choice")
        assert both(server, {**body, "tool_choice": "none"}) == [("Hi", [], "stop")]
    refused(server.post(PATH, {**ASK, "parallel_tool_calls": "no"}), "parallel_tool_calls")


def call(name="now", arguments="{}", id_="call_1"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def made(*calls, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


BAD_HISTORIES = [
    [*USER, {"role": "tool", "content": "x"}],
    [*USER, {"role": "tool", "tool_call_id": 3, "content": "x"}],
    [*USER, {"role": "tool", "tool_call_id": "call_1"}],
    [*USER, made("x")],
    [*USER, {"role": "assistant", "content": "a", "tool_calls": {"a": 1}}],
    [{"role": "user", "content": "a", "tool_calls": [call()]}],
    [*USER, made({"id": "a", "function": "f"})],
    [*USER, made(call(name=3))],
    [*USER, made(call(name=""))],
    [*USER, made(call(arguments=3))],
    [*USER, made(call(id_=3))],
    [*USER, made(*[call()] * 5)],
]


@pytest.mark.parametrize("messages", BAD_HISTORIES, ids=range(len(BAD_HISTORIES)))
def test_v06_histories_that_are_none_are_refused(house, messages):
    server = house(["Hi"], shape=LONG, max_tools=4)
    for tools in ({}, {"tools": TOOLS}):
        refused(server.post(PATH, {"messages": messages, "temperature": 0, **tools}), "messages")


def test_what_a_model_garbled_can_be_sent_back(house):
    server = house(["Hi"], shape={"max_model_len": 8192, "num_blocks": 4096})
    for arguments in ("", "{", "[" * 3000, "3", '{"a": NaN}', {"a": 1}, None):
        messages = [*USER, made(call(arguments=arguments)), {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
        assert both(server, {**ASK, "messages": messages}) == [("Hi", [], "stop")]
