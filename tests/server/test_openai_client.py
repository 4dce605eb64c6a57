"""An unmodified script with the `openai` package, against a real process that serves SmolLM2."""

from __future__ import annotations

import json

import openai
import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "Name three rivers of Europe."}]


@pytest.fixture(scope="module")
def client(smollm2_server):
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key=smollm2_server.key, max_retries=0) as client:
        yield client


def test_the_ready_line_says_what_runs(smollm2_server):
    words = smollm2_server.ready.split()
    assert words[0] == "ready:"
    assert f"model={MODEL}" in words
    assert "kv_tokens=16384" in words
    assert any(word.startswith("attn=attn_") for word in words)


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_streamed_chat_is_the_whole_answer_in_parts(client):
    asked = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 20
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_emoji_survive_the_stream(client):
    asked = {"model": MODEL, "prompt": "\U0001f600\U0001f602\U0001f600\U0001f602\U0001f600", "temperature": 0}
    whole = client.completions.create(**asked, max_tokens=24, echo=True)
    parts = client.completions.create(**asked, max_tokens=24, echo=True, stream=True)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert whole.choices[0].text.startswith(asked["prompt"])


def test_log_probabilities(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=5, logprobs=True, top_logprobs=4
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for entry in content:
        assert len(entry.top_logprobs) == 4
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
    scored = client.completions.create(model=MODEL, prompt="Paris is in France", max_tokens=0, echo=True, logprobs=1)
    logprobs = scored.choices[0].logprobs
    assert "".join(logprobs.tokens) == "Paris is in France"
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[-1] < 0


def test_an_answer_that_obeys_a_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Give me a person as JSON."}],
        temperature=0,
        max_tokens=120,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"}
    assert answer.choices[0].finish_reason == "stop"


def test_several_answers_by_seed(client):
    asked = {"model": MODEL, "prompt": "Once upon a time", "n": 3, "temperature": 1, "max_tokens": 8, "seed": 7}
    first, again = (client.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 3


def test_errors_are_the_client_s_own(client, smollm2_server):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=7000)
    assert bad.value.param == "temperature"
    wrong = openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    with pytest.raises(openai.APIStatusError) as late:
        client.completions.create(
            model=MODEL, prompt="a", max_tokens=4000, extra_body={"timeout": 0.05, "ignore_eos": True}
        )
    assert late.value.status_code == 408


def test_extras_of_vllm_go_through_extra_body(client):
    answer = client.completions.create(
        model=MODEL,
        prompt="The sky is",
        max_tokens=4,
        temperature=0,
        extra_body={"structured_outputs": {"regex": " blue"}},
    )
    assert answer.choices[0].text == " blue"
