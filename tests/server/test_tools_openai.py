"""Tools through the `openai` package, against a real process that serves SmolLM2, whose template knows nothing of
them."""

from __future__ import annotations

import json

import openai
import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city", "maxLength": 30},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Current time in a zone",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 30}}},
    },
}
ASK = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    "tools": [WEATHER, TIME],
    "temperature": 0,
}


@pytest.fixture(scope="module")
def client(smollm2_server):
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key=smollm2_server.key, max_retries=0) as client:
        yield client


def test_a_required_call_names_the_right_tool_with_valid_arguments(client):
    answer = client.chat.completions.create(**ASK, tool_choice="required", parallel_tool_calls=False)
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] == "Rome"
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert set(arguments) == {"city", "unit"}


def test_the_client_s_own_accumulator_joins_the_stream_to_the_whole_answer(client):
    asked = {**ASK, "tool_choice": "required"}
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    joined = [(call.function.name, call.function.arguments) for call in final.message.tool_calls]
    assert joined == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert sum(event.type == "tool_calls.function.arguments.delta" for event in events) > 1


def test_a_named_tool_is_called_and_its_result_read(client):
    asked = {**ASK, "tool_choice": {"type": "function", "function": {"name": "get_time"}}}
    (choice,) = client.chat.completions.create(**asked).choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_time"
    assert set(json.loads(call.function.arguments)) <= {"zone"}
    messages = [*ASK["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "12:30"}]
    answer = client.chat.completions.create(**{**ASK, "messages": messages}, max_tokens=20)
    assert answer.usage.prompt_tokens > 280


def test_what_is_wrong_with_a_tool_is_the_client_s_own_error(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**{**ASK, "tools": [WEATHER, WEATHER]})
    assert bad.value.param == "tools"
