"""Speaks to whatever OPENAI_BASE_URL and OPENAI_API_KEY name, as any script does; prints what it was told as JSON."""

from __future__ import annotations

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
models = [model.id for model in client.models.list()]
ask = {"model": models[0], "messages": [{"role": "user", "content": "Name two rivers."}], "temperature": 0}

whole = client.chat.completions.create(**ask, max_tokens=24).choices[0].message.content
parts = [
    chunk.choices[0].delta.content or ""
    for chunk in client.chat.completions.create(**ask, max_tokens=24, stream=True)
    if chunk.choices
]
scored = client.chat.completions.create(**ask, max_tokens=5, logprobs=True, top_logprobs=2)

person = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
form = {"type": "json_schema", "json_schema": {"name": "person", "schema": person, "strict": True}}
answer = client.chat.completions.create(**ask, max_tokens=100, response_format=form)

weather = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": weather}}
question = {**ask, "messages": [{"role": "user", "content": "What is the weather in Rome?"}]}
choice = client.chat.completions.create(**question, max_tokens=100, tools=[tool], tool_choice="required").choices[0]
call = choice.message.tool_calls[0].function

print(
    json.dumps(
        {
            "models": models,
            "whole": whole,
            "streamed": "".join(parts),
            "num_parts": len(parts),
            "logprobs": [entry.logprob for entry in scored.choices[0].logprobs.content],
            "person": json.loads(answer.choices[0].message.content),
            "call": {"name": call.name, "arguments": json.loads(call.arguments)},
            "finish_reason": choice.finish_reason,
        }
    )
)
