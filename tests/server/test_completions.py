from __future__ import annotations

import pytest

from paged_core.server.protocol.completions import CompletionResponse
from paged_core.testing.tokenizer import ByteTokenizer

PATH = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 12}
EMOJI = ["Hi", " ", b"\xf0\x9f", b"\x98\x80", " é", "!"]


def choices(response):
    assert response.status_code == 200, response.text
    CompletionResponse.model_validate(response.json(), strict=True)
    return response.json()["choices"]


def test_one_prompt_has_one_answer_with_usage(house):
    response = house(["Hello", ", ", "world"]).post(PATH, {"prompt": "abc", **GREEDY})
    (choice,) = choices(response)
    assert choice == {
        "index": 0,
        "text": "Hello, world",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["model"] == "test"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_text_ids_and_lists_of_either_mean_the_same(house):
    server = house()
    text = choices(server.post(PATH, {"prompt": "abc", **GREEDY}))[0]["text"]
    other = choices(server.post(PATH, {"prompt": "xyz", **GREEDY}))[0]["text"]
    ids = [list(b"abc"), list(b"xyz")]
    assert choices(server.post(PATH, {"prompt": ids[0], **GREEDY}))[0]["text"] == text
    for prompt in (["abc", "xyz"], ids):
        both = choices(server.post(PATH, {"prompt": prompt, **GREEDY}))
        assert [(choice["index"], choice["text"]) for choice in both] == [(0, text), (1, other)]


def test_v03_choices_of_a_batch_are_numbered_by_prompt_and_then_by_answer(house):
    body = {"prompt": ["abc", "xyz"], "n": 3, "seed": 5, "max_tokens": 6}
    server = house()
    answers = choices(server.post(PATH, body))
    assert [choice["index"] for choice in answers] == list(range(6))
    alone = choices(server.post(PATH, {**body, "prompt": "xyz"}))
    assert [choice["text"] for choice in answers[3:]] == [choice["text"] for choice in alone]
    assert len({choice["text"] for choice in alone}) == 3


def test_v03_answers_that_end_at_different_times_are_all_there_and_end_once(house):
    server = house()
    body = {"prompt": "abc", "n": 8, "seed": 3, "max_tokens": 20, "stop_token_ids": list(range(0, 320, 9))}
    whole = choices(server.post(PATH, {**body, "return_token_ids": True}))
    lengths = [len(choice["token_ids"]) for choice in whole]
    assert len(set(lengths)) > 4
    joined, ends = [""] * 8, [0] * 8
    for event in server.stream(PATH, body)[:-1]:
        (choice,) = event["choices"]
        assert not ends[choice["index"]], "a delta after the end"
        joined[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert ends == [1] * 8
    assert joined == [choice["text"] for choice in whole]


def test_openai_s_default_is_sixteen_tokens_and_null_is_absent(house):
    server = house()
    for body in (
        {"prompt": "abc", "temperature": 0, "ignore_eos": True},
        {"max_tokens": None, "n": None, "stop": None},
    ):
        base = {"prompt": "abc", "temperature": 0, "ignore_eos": True}
        assert server.post(PATH, {**base, **body}).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
def test_echo_begins_with_the_prompt(house, stream):
    server = house(["Hi"])
    for prompt in ("abc", list(b"abc")):
        body = {"prompt": prompt, "echo": True, **GREEDY}
        if stream:
            events = server.stream(PATH, body)[:-1]
            text = "".join(event["choices"][0]["text"] for event in events)
        else:
            text = choices(server.post(PATH, body))[0]["text"]
        assert text == "abcHi"


def test_s04_max_tokens_zero_with_echo_scores_the_prompt_and_nothing_else(house):
    server = house(table=True)
    response = server.post(PATH, {"prompt": "abcd", "echo": True, "max_tokens": 0, "logprobs": 1})
    (choice,) = choices(response)
    assert choice["text"] == "abcd"
    assert choice["finish_reason"] == "length"
    assert response.json()["usage"]["completion_tokens"] == 0
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list("abcd")
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert all(1 <= len(best) <= 2 for best in logprobs["top_logprobs"][1:])


@pytest.mark.parametrize("wrong", [0, -1, 2**31, 16.0, True, "5"])
def test_s04_max_tokens_out_of_range_is_refused(house, wrong):
    response = house().post(PATH, {"prompt": "abc", "max_tokens": wrong})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


def test_s06_what_does_not_fit_is_refused_with_all_three_numbers(house):
    server = house(shape={"max_model_len": 64})
    response = server.post(PATH, {"prompt": "a" * 8, "max_tokens": 61})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert all(number in message for number in ("64", "8", "61")), message
    assert response.json()["error"]["param"] == "max_tokens"
    assert server.post(PATH, {"prompt": "a" * 8, "max_tokens": 56}).status_code == 200
    assert server.post(PATH, {"prompt": "a" * 90, "max_tokens": 56, "truncate_prompt_tokens": 8}).status_code == 200
    assert server.post(PATH, {"prompt": "a" * 90, "max_tokens": 57, "truncate_prompt_tokens": 8}).status_code == 400
    too_long = server.post(PATH, {"prompt": "a" * 64, "max_tokens": 1}).json()["error"]
    assert too_long["param"] == "prompt"


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [[1], []]])
def test_s03_an_empty_prompt_is_refused_and_harms_nobody(house, prompt):
    server = house(["Hi"])
    response = server.post(PATH, {"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert choices(server.post(PATH, {"prompt": "a"}))[0]["text"] == "Hi"


@pytest.mark.parametrize("prompt", [[-1], [320], [2**63], [1.0], [True], [[1], [400]], ["a", 1], {"a": 1}, 3, None])
def test_m08_ids_that_are_none_are_refused_and_siblings_are_not_run(house, prompt):
    server = house()
    response = server.post(PATH, {"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert server.engine.stats().num_steps == 0


@pytest.mark.parametrize("cut", [{}, {"stop": ["é"]}, {"max_tokens": 3}, {"max_tokens": 4}, {"echo": True}, {"n": 2}])
def test_a_stream_joined_is_the_whole_answer_with_split_characters(house, cut):
    server = house(EMOJI)
    body = {"prompt": "abc", **GREEDY, **cut}
    whole = {choice["index"]: choice for choice in choices(server.post(PATH, body))}
    events = server.stream(PATH, body)
    assert events.pop() == "[DONE]"
    streamed = dict.fromkeys(whole, "")
    reasons = {}
    for event in events:
        CompletionResponse.model_validate(event, strict=True)
        (choice,) = event["choices"]
        assert choice["text"] or choice["finish_reason"], "an empty delta"
        assert choice["index"] not in reasons, "a delta after the end"
        streamed[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert streamed == {index: choice["text"] for index, choice in whole.items()}
    assert reasons == {index: choice["finish_reason"] for index, choice in whole.items()}


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"n": 2, "seed": 3, "temperature": 1}, {"prompt": ["ab", "xyz"]}])
def test_log_probabilities_of_a_stream_joined_are_those_of_the_whole_answer(house, more):
    server = house(table=True)
    body = {"prompt": "abc", "logprobs": 2, **GREEDY, "ignore_eos": True, **more}
    whole = {choice["index"]: choice["logprobs"] for choice in choices(server.post(PATH, body))}
    joined: dict = {index: {key: [] for key in logprobs} for index, logprobs in whole.items()}
    for event in server.stream(PATH, body)[:-1]:
        for choice in event["choices"]:
            for key, values in choice["logprobs"].items():
                joined[choice["index"]][key] += values
    for index, logprobs in whole.items():
        for key in ("tokens", "text_offset"):
            assert joined[index][key] == logprobs[key], key
        for got, want in zip(joined[index]["token_logprobs"], logprobs["token_logprobs"], strict=True):
            assert got == pytest.approx(want, abs=1e-4)


def test_offsets_of_tokens_are_those_of_their_characters(house):
    server = house(["Hi", b"\xf0\x9f", b"\x98\x80", "!"])
    body = {"prompt": "\u00e9a", "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = choices(house(table=True).post(PATH, body))
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "a"]
    assert choices(server.post(PATH, {"prompt": "a", **GREEDY}))[0]["text"] == "Hi\U0001f600!"


def test_special_tokens_that_a_prompt_is_given_are_not_counted_into_its_text(house):
    server = house(table=True, shape={"tokenizer": ByteTokenizer(add_bos=True)})
    scored = {"echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = choices(server.post(PATH, {"prompt": "ab", **scored}))
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["<s>", "a", "b"])
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]
    (choice,) = choices(server.post(PATH, {"prompt": [257, 97, 98], **scored}))
    assert choice["text"] == "<s>ab"
    assert choice["logprobs"]["text_offset"] == [0, 3, 4]
    assert choices(server.post(PATH, {"prompt": "ab", "add_special_tokens": False, **scored}))[0]["logprobs"][
        "tokens"
    ] == ["a", "b"]


def test_what_truncation_leaves_of_a_prompt_is_what_is_echoed(house):
    server = house(table=True)
    body = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = choices(server.post(PATH, body))
    assert choice["text"] == "ef"
    assert choice["logprobs"]["tokens"] == ["e", "f"]
    (whole,) = choices(server.post(PATH, {**body, "truncate_prompt_tokens": 9}))
    assert whole["text"] == "abcdef"


def test_s04_the_score_of_a_prompt_can_be_streamed(house):
    server = house(table=True)
    events = server.stream(PATH, {"prompt": "abcd", "echo": True, "max_tokens": 0, "logprobs": 1})
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["abcd"]
    assert events[0]["choices"][0]["finish_reason"] == "length"


def test_m09_masked_tokens_are_strict_json(house):
    server = house(table=True)
    for more in ({"top_k": 1, "echo": True}, {"logit_bias": {"101": -100}}, {"allowed_token_ids": [97, 98]}):
        response = server.post(PATH, {"prompt": "abc", "logprobs": 5, "max_tokens": 4, "seed": 1, **more})
        (choice,) = choices(response)
        assert "Infinity" not in response.text
        assert "NaN" not in response.text
        for token, best in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
            assert best is None or token in best


GOOD_BIAS = [{"97": 100}, {"97": -100}]
BAD_BIAS = [{"320": 1}, {"-1": 1}, {"abc": 1}, {"1.0": 1}, {str(10**20): 1}, {"97": 101}, {"97": None}, {"97": "5"}]


@pytest.mark.parametrize(("bias", "status"), [*((one, 200) for one in GOOD_BIAS), *((one, 400) for one in BAD_BIAS)])
def test_m06_logit_bias_takes_ids_of_the_vocabulary_only(house, bias, status):
    response = house().post(PATH, {"prompt": "abc", "max_tokens": 3, "logit_bias": bias})
    assert response.status_code == status, response.text
    if status == 400:
        assert response.json()["error"]["param"] == "logit_bias"
    elif bias["97"] == 100:
        assert choices(response)[0]["text"] == "aaa"


@pytest.mark.parametrize(
    ("asked", "status"), [(0, 200), (1, 200), (50, 200), (51, 400), (320, 400), (-1, 400), (True, 400)]
)
def test_m26_the_number_of_log_probabilities_is_bounded(house, asked, status):
    body = {"prompt": "abc", "max_tokens": 2, "seed": 1, "logprobs": asked, "return_tokens_as_token_ids": True}
    response = house().post(PATH, body)
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["param"] == "logprobs"
    else:
        for best in choices(response)[0]["logprobs"]["top_logprobs"]:
            assert asked <= len(best) <= asked + 1


def test_prompt_logprobs_and_token_ids_come_when_asked_for(house):
    server = house(table=True)
    body = {"prompt": "abc", "prompt_logprobs": 1, "return_token_ids": True, **GREEDY}
    (choice,) = choices(server.post(PATH, body))
    assert choice["prompt_token_ids"] == list(b"abc")
    assert len(choice["token_ids"]) == 12
    assert choice["prompt_logprobs"][0] is None
    assert set(choice["prompt_logprobs"][1][str(ord("b"))]) == {"logprob", "rank", "decoded_token"}


@pytest.mark.parametrize("name", ["suffix", "guided_json", "logits_processors", "prompt_embeds", "extra_args"])
def test_what_cannot_be_honoured_is_refused_by_name(house, name):
    response = house().post(PATH, {"prompt": "abc", name: "x"})
    assert response.status_code == 400
    assert f"{name} is not supported" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == name


def test_fields_nobody_knows_are_ignored(house):
    assert house(["Hi"]).post(PATH, {"prompt": "abc", "metadata": {"a": 1}, "store": True, "suffix": None}).is_success


def test_beams_and_best_of_are_answered(house):
    server = house()
    beams = choices(server.post(PATH, {"prompt": "abc", "use_beam_search": True, "n": 2, "beam_width": 3, **GREEDY}))
    assert len(beams) == 2
    assert len(choices(server.post(PATH, {"prompt": "abc", "n": 2, "best_of": 4, "seed": 1, "max_tokens": 4}))) == 2
