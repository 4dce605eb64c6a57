"""SamplingParams: every bad value is refused with the field's name, every good one is taken as it is."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api import params as module
from paged_core.api.logits import LogitsProcessor
from paged_core.api.output_kind import RequestOutputKind
from paged_core.api.params import SamplingParams
from paged_core.errors import RequestError

NAN, INF = float("nan"), float("inf")
HUGE = 10**5000  # too many digits for Python to print

NUMBERS = {
    "presence_penalty": ([-2, 0.5, 2.0], [-2.01, 2.01, 1e9, -1e9]),
    "frequency_penalty": ([-2, 0.5, 2.0], [-2.01, 2.01, 1e9, -1e9]),
    "repetition_penalty": ([0.01, 1, 2.0], [0, -1.0, 1e9]),
    "temperature": ([0, 1e-9, 1, 2.0], [-0.1, 1e6]),
    "top_p": ([1e-9, 0.5, 1], [0, 0.0, -1, 1.0001]),
    "min_p": ([0, 0.0, 0.5, 1], [-0.1, 1.1]),
    "length_penalty": ([-1.0, 0, 2], [1e6]),
}
INTEGERS = {
    "n": ([1, 256], [0, -1, 257, 10**9]),
    "best_of": ([None, 1, 256], [0, 257, 10**9]),
    "top_k": ([-1, 0, 1, 10**7], [-2, -(10**9)]),
    "seed": ([None, -1, 0, 2**63, 2**64 - 1], [2**64, -(2**63) - 1]),
    "max_tokens": ([None, 1, 2**31 - 1], [0, -1, 2**31]),
    "min_tokens": ([0, 5, 16], [-1, 2**31]),
    "logprobs": ([None, -1, 0, 1, 50, 10**6], [-2, 2**31]),
    "prompt_logprobs": ([None, -1, 0, 1, 50, 10**6], [-2, 2**31]),
    "truncate_prompt_tokens": ([None, -1, 1, 10**6], [-2, 0, 2**31]),
    "beam_width": ([None, 1, 256], [0, 257]),
}
BEAMS = {"beam_width", "length_penalty", "early_stopping"}
FLAGS = [item.name for item in fields(SamplingParams) if item.type == "bool"]


def made(name, value, **others):
    """Parameters with this value; those of beam search alone come with a beam search."""
    return SamplingParams(**{name: value}, **({"use_beam_search": True} if name in BEAMS else {}), **others)


def refused(name, value, **others):
    with pytest.raises(RequestError) as caught:
        made(name, value, **others)
    assert caught.value.field == name
    assert name in str(caught.value)
    assert len(str(caught.value)) < 300
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
def test_values_within_the_range_are_kept_as_they_are(name):
    for value in (NUMBERS | INTEGERS)[name][0]:
        kept = getattr(made(name, value), name)
        assert kept == (None if (name, value) == ("seed", -1) else value)
        assert kept is None or type(kept) is type(value)


@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
def test_m05_museum_41_values_outside_the_range_or_of_another_type_name_the_field(name):
    for value in (NUMBERS | INTEGERS)[name][1]:
        refused(name, value)
    for value in (NAN, INF, -INF, "0.5", "5", "", True, False, [1], {}, b"1", HUGE, -HUGE, 1 + 0j):
        refused(name, value)


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "best_of"])
def test_m05_numbers_may_not_be_null(name):
    refused(name, None)


@pytest.mark.parametrize("name", list(INTEGERS))
def test_museum_40_integers_may_not_be_floats_and_zero_is_not_none(name):
    refused(name, 1.0)
    assert SamplingParams(logprobs=0).logprobs == 0


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false_and_nothing_else(name):
    for value in (True, False):
        assert getattr(SamplingParams(**{name: value}), name) is value
    for value in (None, 0, 1, "true", 1.0, []):
        refused(name, value)


def test_every_flag_is_checked():
    assert set(FLAGS) == set(module._FLAGS)


def test_early_stopping_is_a_flag_or_never():
    for value in (True, False, "never"):
        assert made("early_stopping", value).early_stopping == value
    for value in (None, 1, "always", 0.0):
        refused("early_stopping", value)


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_strings_are_a_list_of_non_empty_strings_within_bounds(name):
    assert getattr(SamplingParams(**{name: ["a", "b"]}), name) == ["a", "b"]
    assert getattr(SamplingParams(**{name: ("a",)}), name) == ["a"]
    assert getattr(SamplingParams(**{name: None}), name) == []
    for value in ([""], [1], ["a", None], 5, {"a": 1}, b"ab", ["x" * 1025], ["x"] * 257, ["x"] * 10**5, [["a"]]):
        refused(name, value)


def test_stop_may_be_one_string():
    assert SamplingParams(stop="END").stop_strings == ["END"]
    refused("stop", "")
    refused("bad_words", "one")


def test_stop_strings_need_text_to_be_looked_for_in():
    refused("stop", "x", detokenize=False)
    assert SamplingParams(detokenize=False, stop_token_ids=[3]).stop_strings == []


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_m08_token_ids_are_non_negative_integers(name):
    assert getattr(SamplingParams(**{name: (0, 5)}), name) == [0, 5]
    for value in ([-1], [1.0], [True], ["1"], "12", 5, {1: 2}, [[1]], [None], [1] * (2**18 + 1)):
        refused(name, value)


def test_allowed_token_ids_may_not_be_empty():
    refused("allowed_token_ids", [])
    assert SamplingParams().allowed_token_ids is None


@pytest.mark.parametrize(
    "key", ["320", "-1", "abc", "1.0", str(10**20), "", " 3", "+3", "012", "٣", 1.0, True, None, -1]
)
def test_m06_logit_bias_keys_that_are_no_token_of_the_vocabulary_are_refused(key):
    with pytest.raises(RequestError) as caught:
        SamplingParams(logit_bias={key: 1.0}).check_vocabulary(320)
    assert caught.value.field == "logit_bias"


@pytest.mark.parametrize("value", [101, -101, None, "1", NAN, INF, True, [1], HUGE], ids=range(9))
def test_m06_logit_bias_values_beyond_a_hundred_are_refused(value):
    refused("logit_bias", {"319": value})


def test_m06_logit_bias_within_the_vocabulary_is_taken():
    params = SamplingParams(logit_bias={"319": -100, 0: 100})
    assert params.logit_bias == {319: -100.0, 0: 100.0}
    params.check_vocabulary(320)


@pytest.mark.parametrize("value", [[1, 2], "1", 5, dict.fromkeys(range(1025), 0.0)], ids=["list", "str", "int", "many"])
def test_logit_bias_is_a_mapping_within_bounds(value):
    refused("logit_bias", value)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token", [320, 2**63, HUGE], ids=["first", "64 bits", "huge"])
def test_token_ids_beyond_the_vocabulary_are_refused_when_it_is_known(name, token):
    params = SamplingParams(**{name: [319, token]})
    with pytest.raises(RequestError, match="outside the vocabulary of 320") as caught:
        params.check_vocabulary(320)
    assert caught.value.field == name


def test_fields_that_contradict_each_other_are_refused():
    refused("min_tokens", 17)
    refused("min_tokens", 5, max_tokens=4)
    refused("best_of", 2, n=3)
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17


def test_lists_of_the_caller_are_copied():
    ids, words = [1], ["a"]
    params = SamplingParams(allowed_token_ids=ids, stop_token_ids=ids, stop=words, bad_words=words)
    ids.append(2)
    words.append("b")
    assert (params.allowed_token_ids, params.stop_token_ids, params.stop, params.bad_words) == ([1], [1], ["a"], ["a"])


def test_names_and_defaults_are_those_of_vllm():
    params = SamplingParams()
    for name, value in {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "max_tokens": 16,
        "min_tokens": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": None,
        "prompt_logprobs": None,
        "ignore_eos": False,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "logit_bias": None,
        "allowed_token_ids": None,
    }.items():
        assert getattr(params, name) == value, name


@pytest.mark.parametrize("temperature, greedy", [(0, True), (9e-6, True), (1e-5, False), (1.0, False)])
def test_greedy_is_a_temperature_below_a_hundred_thousandth(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_num_sequences_is_the_most_a_request_needs_at_once():
    assert SamplingParams().num_sequences == 1
    assert SamplingParams(n=2, best_of=5).num_sequences == 5
    assert SamplingParams(n=2, use_beam_search=True, beam_width=7).num_sequences == 7


def test_from_mapping_takes_known_names_only_and_suggests_the_right_one():
    assert SamplingParams.from_mapping({"top_k": 5, "stop": "x"}) == SamplingParams(top_k=5, stop="x")
    with pytest.raises(RequestError, match="did you mean 'temperature'") as caught:
        SamplingParams.from_mapping({"temprature": 1})
    assert caught.value.field == "temprature"
    for name in ("bad_words_token_ids", "__class__", "", 5, "x" * 10**6):
        with pytest.raises(RequestError, match="there is no sampling parameter") as caught:
            SamplingParams.from_mapping({name: 1})
        assert len(str(caught.value)) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([item.name for item in fields(SamplingParams) if item.init]), JSON, max_size=4))
def test_whatever_json_brings_is_taken_or_refused_by_name(values):
    """No TypeError, no OverflowError: a bad value of one request is that request's error."""
    field: str | None = ""
    try:
        SamplingParams.from_mapping(json.loads(json.dumps(values))).check_vocabulary(320)
    except RequestError as error:
        field = error.field
    assert field in ["", *values], "every refusal names one of the fields given"


def test_lists_of_tokens_to_report_are_short():
    assert len(SamplingParams(logprob_token_ids=list(range(128))).logprob_token_ids) == 128
    refused("logprob_token_ids", list(range(129)))


@pytest.mark.parametrize("name", list(module.NOT_SUPPORTED))
def test_parameters_of_vllm_without_a_meaning_here_are_refused_with_the_reason(name):
    with pytest.raises(RequestError, match=f"{name} is not supported: ") as caught:
        SamplingParams.from_mapping({name: None})
    assert caught.value.field == name


def test_output_kind_is_one_of_three_also_by_name():
    for kind in RequestOutputKind:
        assert SamplingParams(output_kind=kind).output_kind is kind
        assert SamplingParams.from_mapping({"output_kind": kind.name}).output_kind is kind
    for value in ("delta", "", 1, None, True, ["DELTA"]):
        refused("output_kind", value)


def test_skip_reading_prefix_cache_is_a_flag_or_null():
    for value in (True, False, None):
        assert SamplingParams(skip_reading_prefix_cache=value).skip_reading_prefix_cache is value
    for value in (0, 1, "true"):
        refused("skip_reading_prefix_cache", value)


def test_a_clone_has_lists_of_its_own_and_shares_logits_processors():
    class Nothing(LogitsProcessor):
        def apply(self, logits):
            pass

    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, allowed_token_ids=[1], logits_processors=[Nothing()])
    twin = params.clone()
    assert twin == params
    twin.stop.append("b")
    twin.logit_bias[5] = 1.0
    twin.allowed_token_ids.append(3)
    twin.bad_words_token_ids.append([4])
    twin.logits_processors.append(Nothing())
    assert params.stop == ["a"]
    assert params.logit_bias == {1: 2.0}
    assert params.allowed_token_ids == [1]
    assert params.bad_words_token_ids == []
    assert len(params.logits_processors) == 1
    assert twin.logits_processors[0] is params.logits_processors[0]


def test_every_list_of_the_parameters_is_cloned():
    filled = SamplingParams(stop="x", logit_bias={}, allowed_token_ids=[1], logprob_token_ids=[2])
    lists = {item.name for item in fields(SamplingParams) if isinstance(getattr(filled, item.name), (list, dict))}
    assert lists == set(module._LISTS)
