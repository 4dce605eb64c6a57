from __future__ import annotations

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from paged_core.errors import RequestError
from paged_core.testing.tokenizer import ByteTokenizer

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
GREEDY = {"messages": USER, "temperature": 0, "max_tokens": 12}
EMOJI = ["Hi", " ", b"\xf0\x9f", b"\x98\x80", " é", "!"]
PROMPT = "user: Hello\nassistant: "


def answer(response):
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json(), strict=True)
    return response.json()


def deltas(events):
    """Choices of all chunks by index; every chunk must be what the official client takes in strict mode."""
    assert events[-1] == "[DONE]"
    by_index: dict[int, list] = {}
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event, strict=True)
        for choice in event["choices"]:
            by_index.setdefault(choice["index"], []).append(choice)
    return by_index


def refused(response, param):
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    return error["message"]


def test_a_conversation_is_answered_as_its_rendered_prompt_is(house):
    server = house()
    body = answer(server.post(PATH, {**GREEDY, "ignore_eos": True}))
    (choice,) = body["choices"]
    completion = server.post(
        "/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    )
    assert choice["message"]["content"] == completion.json()["choices"][0]["text"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert body["object"] == "chat.completion"
    assert body["usage"]["prompt_tokens"] == len(PROMPT)
    assert body["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("more", [{}, {"stop": ["é"]}, {"max_tokens": 3}, {"max_completion_tokens": 4}, {"n": 2}])
def test_v13_a_stream_has_one_role_no_empty_delta_one_end_and_the_whole_text(house, more):
    server = house(EMOJI)
    body = {**GREEDY, **more}
    whole = {choice["index"]: choice for choice in answer(server.post(PATH, body))["choices"]}
    by_index = deltas(server.stream(PATH, body))
    assert set(by_index) == set(whole)
    for index, choices in by_index.items():
        first, *middle, last = choices
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert all(set(choice["delta"]) == {"content"} and choice["delta"]["content"] for choice in middle)
        assert all(choice["finish_reason"] is None for choice in (first, *middle))
        assert last["delta"] == {}
        assert last["finish_reason"] == whole[index]["finish_reason"]
        text = "".join(choice["delta"]["content"] for choice in middle)
        assert text == whole[index]["message"]["content"]
        assert "\ufffd" not in text or more == {"max_tokens": 3}


@pytest.mark.parametrize(
    ("options", "asked"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_v01_usage_comes_once_at_the_end_and_only_when_asked_for(house, options, asked):
    body = GREEDY if options is None else {**GREEDY, "stream_options": options}
    events = house(["Hi", "!"]).stream(PATH, body)
    with_usage = [event for event in events[:-1] if event.get("usage")]
    assert len(with_usage) == asked
    if asked:
        assert with_usage == [events[-2]]
        assert events[-2]["choices"] == []
        assert events[-2]["usage"]["completion_tokens"] == 3
        assert all(event["usage"] is None for event in events[:-2])
    else:
        assert all("usage" not in event for event in events[:-1])


def test_v01_stream_options_without_a_stream_are_refused(house):
    server = house()
    refused(server.post(PATH, {**GREEDY, "stream_options": {"include_usage": True}}), "stream_options")
    refused(server.post(PATH, {**GREEDY, "stream": True, "stream_options": {"include_usage": "yes"}}), "stream_options")


def test_usage_of_every_chunk_when_asked_for(house):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = house(["Hi", "!"]).stream(PATH, {**GREEDY, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 3


def test_log_probabilities_have_openai_s_form_in_both_modes(house):
    server = house()
    body = {**GREEDY, "logprobs": True, "top_logprobs": 3, "ignore_eos": True}
    (choice,) = answer(server.post(PATH, body))["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 12
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"], "greedy takes the best"
        assert entry["logprob"] == max(other["logprob"] for other in entry["top_logprobs"])
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace") == choice["message"]["content"]
    choices = deltas(server.stream(PATH, body))[0]
    joined = [entry for one in choices for entry in (one["logprobs"] or {"content": []})["content"]]
    assert [entry["token"] for entry in joined] == [entry["token"] for entry in content]
    assert [entry["logprob"] for entry in joined] == pytest.approx([entry["logprob"] for entry in content], abs=1e-4)


def test_m26_top_logprobs_are_bounded_and_need_logprobs(house):
    server = house()
    base = {**GREEDY, "max_tokens": 1}
    (choice,) = answer(server.post(PATH, {**base, "logprobs": True}))["choices"]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []
    assert choice["logprobs"]["content"][0]["logprob"] < 0
    refused(server.post(PATH, {**base, "top_logprobs": 2}), "top_logprobs")
    refused(server.post(PATH, {**base, "logprobs": 2}), "logprobs")
    for wrong in (51, 320, -2, True):
        refused(server.post(PATH, {**base, "logprobs": True, "top_logprobs": wrong}), "top_logprobs")


def test_the_answer_ends_by_itself_unless_a_limit_is_given(house):
    server = house(["ab"] * 40, shape={"max_model_len": 128})
    free = answer(server.post(PATH, {"messages": USER, "temperature": 0}))
    assert free["usage"]["completion_tokens"] == 41
    assert free["choices"][0]["finish_reason"] == "stop"
    for name in ("max_tokens", "max_completion_tokens"):
        limited = answer(server.post(PATH, {"messages": USER, "temperature": 0, name: 5}))
        assert limited["usage"]["completion_tokens"] == 5
        for wrong in (0, -1, 2**31, 1.5, "5", True):
            refused(server.post(PATH, {"messages": USER, name: wrong}), name)


def test_parts_of_text_are_joined_and_other_parts_are_refused(house):
    server = house(shape={"max_model_len": 128})

    def num_tokens(content):
        response = server.post("/tokenize", {"messages": [{"role": "user", "content": content}]})
        return response.json().get("count", response.json())

    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert num_tokens(parts) == num_tokens("one\ntwo")
    for part in ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}, {"type": "text"}, 3, None):
        body = {**GREEDY, "messages": [{"role": "user", "content": [part]}]}
        refused(server.post(PATH, body), "messages")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"role": "wizard", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        ["x"],
        "x",
        [{"role": 3, "content": "x"}],
        [{"role": "user", "content": {"a": 1}}],
        None,
        [{"role": "tool", "content": "x"}],
    ],
)
def test_v06_v09_messages_that_are_none_are_refused(house, messages):
    refused(house().post(PATH, {**GREEDY, "messages": messages}), "messages")


def test_v09_the_template_s_own_words_reach_the_caller(house):
    class NoSystem(ByteTokenizer):
        def apply_chat_template(self, messages, **kwargs):
            if messages[0]["role"] == "system":
                raise RequestError("the model's chat template refuses these messages: no system role", "messages")
            return super().apply_chat_template(messages, **kwargs)

    server = house(shape={"tokenizer": NoSystem()})
    message = refused(
        server.post(PATH, {**GREEDY, "messages": [{"role": "system", "content": "x"}, *USER]}), "messages"
    )
    assert "no system role" in message


def test_developer_messages_are_system_messages(house):
    server = house(shape={"max_model_len": 128})
    counts = {
        server.post("/tokenize", {"messages": [{"role": role, "content": "be short"}, *USER]}).json()["count"]
        for role in ("system", "developer")
    }
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": "x"}}}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::="}}, "structured_outputs"),
        ({"structured_outputs": {"nope": 1}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_t01_forms_that_are_none_and_what_is_not_offered_are_refused(house, more, param):
    server = house()
    for stream in (False, True):
        refused(server.post(PATH, {**GREEDY, "stream": stream, **more}), param)
    assert answer(server.post(PATH, GREEDY))


def test_t05_large_bounds_are_taken_or_refused(house):
    server = house()
    for bound in (2**31, 2**53, 2**63, 1e30):
        schema = {"type": "integer", "minimum": 0, "maximum": bound}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        assert server.post(PATH, {**GREEDY, "response_format": form}).status_code in (200, 400)
    assert answer(server.post(PATH, GREEDY))


def test_answers_obey_the_form(house):
    server = house()
    body = {**GREEDY, "structured_outputs": {"choice": ["yes", "no"]}, "logprobs": True, "top_logprobs": 5}
    response = server.post(PATH, body)
    (choice,) = answer(response)["choices"]
    assert choice["message"]["content"] in ("yes", "no")
    assert "Infinity" not in response.text


def test_template_variables_reach_the_template_and_are_bounded(house):
    server = house(max_template_kwargs=2)
    assert answer(server.post(PATH, {**GREEDY, "chat_template_kwargs": {"enable_thinking": False}}))
    refused(server.post(PATH, {**GREEDY, "chat_template_kwargs": {"a": 1, "b": 2, "c": 3}}), "chat_template_kwargs")
    for name in ("messages", "tools", "self"):
        refused(server.post(PATH, {**GREEDY, "chat_template_kwargs": {name: []}}), "chat_template_kwargs")
