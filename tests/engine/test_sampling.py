"""The sampling parameters through engine and model: what goes in, what comes out, what is refused before it runs."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from paged_core import LLM, SamplingParams
from paged_core.api.flat_logprobs import FlatLogprobs
from paged_core.api.logits import LogitsProcessor
from paged_core.api.output_kind import RequestOutputKind
from paged_core.api.repetition import RepetitionDetectionParams
from paged_core.engine.intake import Intake
from paged_core.errors import RequestError
from paged_core.testing.tiny import write_tiny_llama

VOCAB = 320


class Script(LogitsProcessor):
    """Forces these tokens, one after the other, then the last one for ever."""

    def __init__(self, *tokens):
        self.tokens = tokens
        self.given = 0

    def apply(self, logits):
        wanted = self.tokens[min(self.given, len(self.tokens) - 1)]
        kept = logits[wanted].clone()
        logits.fill_(-torch.inf)
        logits[wanted] = kept

    def accept(self, tokens):
        self.given += len(tokens)


class Refusing(LogitsProcessor):
    def __init__(self, error):
        self.error = error

    def check(self, params, vocab_size):
        raise self.error

    def apply(self, logits):
        raise AssertionError("never runs")


class Failing(LogitsProcessor):
    """Fails when told of its third token."""

    def __init__(self):
        self.given = 0

    def apply(self, logits):
        pass

    def accept(self, tokens):
        self.given += len(tokens)
        if self.given >= 3:
            raise ValueError("enough")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, num_blocks=256, attn="attn_torch", max_logprobs=20) as made:
        yield made
        made.engine.check()


def params(**values):
    return SamplingParams(**{"temperature": 0, "max_tokens": 6, "ignore_eos": True, **values})


def answer(llm, prompt="the one", **values):
    return llm.generate(prompt, params(**values), use_tqdm=False)[0]


def ids(llm, prompt="the one", **values):
    return answer(llm, prompt, **values).outputs[0].token_ids


def script(*tokens):
    return {"logits_processors": [Script(*tokens)]}


# -- logits processors ------------------------------------------------------------------------------------------------


def test_a_processor_writes_its_own_request_and_no_neighbour(llm):
    plain = ids(llm)
    together = llm.generate(["the one"] * 3, [params(), params(**script(5, 6, 7)), params()], use_tqdm=False)
    assert [output.outputs[0].token_ids for output in together] == [plain, [5, 6, 7, 7, 7, 7], plain]


def test_every_branch_has_a_fork_of_its_own(llm):
    output = answer(llm, n=3, temperature=1.0, seed=3, **script(5, 6, 7, 8))
    assert [branch.token_ids for branch in output.outputs] == [[5, 6, 7, 8, 8, 8]] * 3


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
def test_a_preempted_request_goes_on_with_its_script(model, preempt):
    with LLM(model, num_blocks=8, block_size=4, attn="attn_torch", preempt=preempt, max_model_len=32) as llm:
        wanted = list(range(30, 48))
        outputs = llm.generate(["ab"] * 3, params(max_tokens=18, **script(*wanted)), use_tqdm=False)
        assert sum(llm.engine.stats().preemptions.values()) > 0, "the pool was to be too small"
        assert [output.outputs[0].token_ids for output in outputs] == [wanted] * 3
        llm.engine.check()


class Turns(LogitsProcessor):
    """Allows the tokens of one set after those of the other."""

    def __init__(self, *sets):
        self.sets = sets
        self.given = 0

    def apply(self, logits):
        allowed = self.sets[self.given % len(self.sets)]
        kept = logits[allowed].clone()
        logits.fill_(-torch.inf)
        logits[allowed] = kept

    def accept(self, tokens):
        self.given += len(tokens)


def test_beams_have_processors_that_hear_their_own_tokens(llm):
    """A beam that goes on with another token than its row drew is told so; one that forks is told its parent's."""
    turns = Turns([10, 11], [20, 21, 22], [30, 31])
    output = answer(llm, n=4, use_beam_search=True, beam_width=4, max_tokens=9, logits_processors=[turns])
    assert len({tuple(beam.token_ids) for beam in output.outputs}) == 4
    for beam in output.outputs:
        assert [token // 10 for token in beam.token_ids] == [1, 2, 3] * 3


def test_a_processor_that_fails_ends_its_request_with_a_reason(llm):
    bad, good = llm.generate(["the one"] * 2, [params(logits_processors=[Failing()]), params()], use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert bad.error == "the logits processor Failing failed while taking token " + bad.error.split("token ")[1]
    assert bad.error.endswith("ValueError: enough")
    assert good.outputs[0].token_ids == ids(llm)


def test_a_processor_that_cannot_compose_is_refused_at_once(llm):
    for error, said in (
        (RequestError("not with me", "seed"), "not with me"),
        (KeyError("x"), "Refusing cannot be used"),
    ):
        with pytest.raises(RequestError, match=said):
            answer(llm, logits_processors=[Refusing(error)])
    assert not llm.engine.has_unfinished


def test_a_sampler_that_lacks_a_capability_refuses_what_needs_it(llm):
    asked = {
        "logits_processors": script(5),
        "penalties": {"presence_penalty": 1.0},
        "logit_bias": {"logit_bias": {1: 1.0}},
        "bad_words": {"bad_words": ["x"]},
        "allowed_token_ids": {"allowed_token_ids": [1]},
        "logprobs": {"logprobs": 0},
        "logprob_token_ids": {"logprob_token_ids": [1]},
        "min_p": {"min_p": 0.5},
        "seed": {"seed": 0},
        "candidates": {"use_beam_search": True, "beam_width": 2},
    }
    facts = llm.engine.facts
    for capability, values in asked.items():
        fewer = dataclasses.replace(facts, sampler_capabilities=facts.sampler_capabilities - {capability})
        intake = Intake(llm.tokenizer, fewer)
        with pytest.raises(RequestError, match=f"a sampler with '{capability}'; sample_torch does not") as caught:
            intake.request("r", "the one", params(**values), 0.0)
        assert caught.value.field == next(iter(values))
        intake.request("r", "the one", params(), 0.0)
        Intake(llm.tokenizer, facts).request("r", "the one", params(**values), 0.0)


def test_the_caller_s_parameters_and_the_engine_s_are_two_things(llm):
    """The engine fills in the tokens of bad words; the caller changes lists after the request is under way."""
    mine = params(bad_words=["x"], stop_token_ids=[300], logit_bias={300: -1.0}, logprobs=3)
    llm.engine.add_request("a", "the one", mine)
    assert mine.bad_words_token_ids == []
    assert mine.logprobs == 3
    mine.stop_token_ids.append(9)
    mine.logit_bias[9] = 100.0
    outputs = []
    while llm.engine.has_unfinished:
        outputs += llm.engine.step()
    assert outputs[0].outputs[0].token_ids == ids(llm, bad_words=["x"])


# -- endings and prompts ----------------------------------------------------------------------------------------------


def test_a_loop_ends_with_finish_reason_repetition(llm):
    loop = RepetitionDetectionParams(max_pattern_size=3, min_count=3)
    output = answer(llm, max_tokens=40, repetition_detection=loop, **script(9, 5, 6, 5, 6, 5, 6, 5)).outputs[0]
    assert output.token_ids == [9, 5, 6, 5, 6, 5, 6]
    assert (output.finish_reason, output.stop_reason) == ("repetition", "repetition_detected")
    assert llm.engine.stats().finished["repetition"] == 1
    late = answer(llm, max_tokens=40, min_tokens=8, repetition_detection=loop, **script(9, 5, 6, 5, 6, 5, 6, 5))
    assert late.outputs[0].token_ids == [9, 5, 6, 5, 6, 5, 6, 5, 5, 5], "three fives, past min_tokens"


def test_m16_ignore_eos_keeps_the_user_s_stop_ids(llm):
    eos = llm.tokenizer.eos_token_ids[0]
    tokens = [60, eos, 61, eos, 62, 65, 66]
    long = answer(llm, max_tokens=10, **script(*tokens)).outputs[0]
    assert (len(long.token_ids), long.finish_reason) == (10, "length")
    stopped = answer(llm, max_tokens=10, stop_token_ids=[65], **script(*tokens)).outputs[0]
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == (tokens[:6], "stop", 65)


def test_m14_a_stop_string_before_min_tokens_is_text(llm):
    tokens = [token for letter in "a\nbc\nd" for token in spelled(llm, letter)]
    output = answer(llm, stop="\n", min_tokens=3, **script(*tokens)).outputs[0]
    assert (output.text, output.finish_reason) == ("a\nbc", "stop")


def test_truncate_prompt_tokens_keeps_the_end(llm):
    prompt = list(range(20, 40))
    assert answer(llm, prompt, truncate_prompt_tokens=5).prompt_token_ids == prompt[-5:]
    assert answer(llm, prompt, truncate_prompt_tokens=50).prompt_token_ids == prompt
    long = [5] * 200
    with pytest.raises(RequestError, match="max_model_len"):
        answer(llm, long)
    assert len(answer(llm, long, truncate_prompt_tokens=-1, max_tokens=10).prompt_token_ids) == 118


def test_a_request_may_leave_the_prefix_cache_unread(llm):
    prompt = list(range(30, 80))
    first = answer(llm, prompt)
    assert answer(llm, prompt).num_cached_tokens == 48
    cold = answer(llm, prompt, skip_reading_prefix_cache=True)
    assert cold.num_cached_tokens == 0
    assert cold.outputs[0].token_ids == first.outputs[0].token_ids
    both = answer(llm, prompt, skip_reading_prefix_cache=False, prompt_logprobs=0)
    assert both.num_cached_tokens == 0, "the prompt's log-probabilities need every position"
    assert len(both.prompt_logprobs) == 50


# -- what a streamed output holds -------------------------------------------------------------------------------------


def stream(llm, **values):
    llm.engine.add_request("s", "the one", params(**values), stream=True)
    outputs = []
    while llm.engine.has_unfinished:
        outputs += llm.engine.step()
    return outputs


def spelled(llm, text):
    return llm.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def text(llm):
    """Parameters that make the model write a text whose characters take several tokens."""
    tokens = spelled(llm, "Grüße, 木!")
    return {"logits_processors": [Script(*tokens)], "max_tokens": len(tokens)}


@pytest.mark.parametrize("extra", [{}, {"n": 3, "temperature": 1.0}, {"stop": "木!?"}, {"logprobs": 2}], ids=str)
def test_deltas_add_up_to_the_final_answer(llm, text, extra):
    whole = stream(llm, **text, **extra)[-1]
    deltas = stream(llm, output_kind=RequestOutputKind.DELTA, prompt_logprobs=1, **text, **extra)
    assert [output.finished for output in deltas] == [False] * (len(deltas) - 1) + [True]
    assert len(deltas) == text["max_tokens"]
    for final in whole.outputs:
        parts = [one for output in deltas for one in output.outputs if one.index == final.index]
        assert "".join(part.text for part in parts) == final.text
        assert [token for part in parts for token in part.token_ids] == final.token_ids
        assert parts[-1].finish_reason == final.finish_reason
        assert all(part.finish_reason is None for part in parts[:-1]), "an end was told twice"
        if final.logprobs is not None:
            assert parts[-1].cumulative_logprob == pytest.approx(final.cumulative_logprob, abs=1e-3)
            assert [list(entry) for part in parts for entry in part.logprobs] == [list(one) for one in final.logprobs]
    assert len(deltas[0].prompt_logprobs) == len(deltas[0].prompt_token_ids)
    assert [output.prompt_logprobs for output in deltas[1:]] == [None] * (len(deltas) - 1)


def test_branches_without_news_are_left_out_of_a_delta(llm):
    values = {"n": 2, "temperature": 1.0, "seed": 1, "max_tokens": 8, "logits_processors": [EndsOneBranch()]}
    outputs = stream(llm, output_kind=RequestOutputKind.DELTA, stop_token_ids=[65], **values)
    assert [[one.index for one in output.outputs] for output in outputs] == [[0, 1]] * 2 + [[0]] * 6 or [
        [one.index for one in output.outputs] for output in outputs
    ] == [[0, 1]] * 2 + [[1]] * 6


class EndsOneBranch(LogitsProcessor):
    """The first branch that asks for its second token ends with it; the others go on."""

    taken = False

    def __init__(self):
        self.given = 0

    def apply(self, logits):
        end = self.given == 1 and not EndsOneBranch.taken
        EndsOneBranch.taken = EndsOneBranch.taken or end
        logits.fill_(-torch.inf)
        logits[65 if end else 70] = 0.0

    def accept(self, tokens):
        self.given += len(tokens)


def test_final_only_has_one_output_though_it_is_streamed(llm, text):
    (output,) = stream(llm, output_kind=RequestOutputKind.FINAL_ONLY, **text)
    assert output.finished
    assert output.outputs[0].text == "Grüße, 木!"


def test_a_delta_that_is_not_streamed_is_the_whole_answer(llm, text):
    output = answer(llm, output_kind=RequestOutputKind.DELTA, **text)
    assert output.outputs[0].text == "Grüße, 木!"
    assert len(output.outputs[0].token_ids) == text["max_tokens"]


# -- log-probabilities ------------------------------------------------------------------------------------------------


def test_m26_counts_up_to_the_limit_are_kept_and_others_refused_before_they_run(llm):
    for name in ("logprobs", "prompt_logprobs"):
        for count in (0, 1, 20):
            output = answer(llm, **{name: count})
            entries = output.outputs[0].logprobs if name == "logprobs" else output.prompt_logprobs[1:]
            assert {len(entry) for entry in entries} <= {count, count + 1} - {0}
        for count in (21, VOCAB, VOCAB + 1, -1):
            with pytest.raises(RequestError, match="max_logprobs") as caught:
                answer(llm, **{name: count})
            assert caught.value.field == name
    assert not llm.engine.has_unfinished


def test_the_whole_vocabulary_where_the_engine_allows_it(model):
    with LLM(model, num_blocks=64, attn="attn_torch", max_logprobs=-1) as llm:
        output = answer(llm, max_tokens=2, logprobs=-1, prompt_logprobs=-1)
        for entry in [*output.outputs[0].logprobs, *output.prompt_logprobs[1:]]:
            assert sorted(entry) == list(range(VOCAB))
            assert math.fsum(math.exp(one.logprob) for one in entry.values()) == pytest.approx(1, abs=1e-4)
        with pytest.raises(RequestError, match="allows at most 320"):
            answer(llm, logprobs=321)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_each_logprobs_mode_reaches_the_answer(model, llm, mode):
    with LLM(model, num_blocks=64, attn="attn_torch", logprobs_mode=mode) as other:
        assert other.engine.facts.logprobs_mode == mode
        found = answer(other, temperature=1.0, seed=5, logprobs=5, logit_bias={9: 100.0}, prompt_logprobs=1)
        plain = answer(llm, temperature=1.0, seed=5, logprobs=5, logit_bias={9: 100.0}, prompt_logprobs=1)
    assert found.outputs[0].token_ids == plain.outputs[0].token_ids == [9] * 6
    values = [entry[9].logprob for entry in found.outputs[0].logprobs]
    raw = [entry[9].logprob for entry in plain.outputs[0].logprobs]
    if mode == "raw_logprobs":
        assert values == raw
    elif mode == "processed_logprobs":
        assert values == pytest.approx([0.0] * 6, abs=1e-4)
    elif mode == "raw_logits":
        assert all(abs(value) < 50 for value in values)
        assert values != raw
    else:
        assert all(value > 50 for value in values)
    prompt = [next(iter(entry.values())).logprob for entry in found.prompt_logprobs[1:]]
    wanted = [next(iter(entry.values())).logprob for entry in plain.prompt_logprobs[1:]]
    assert (prompt == wanted) == mode.endswith("logprobs")


def test_ranking_by_logits_is_refused(model):
    refused = pytest.raises(RequestError, match="best_of ranks by log-probability")
    with LLM(model, num_blocks=64, attn="attn_torch", logprobs_mode="raw_logits") as llm, refused:
        answer(llm, n=1, best_of=2, temperature=1.0)


def test_listed_tokens_come_with_the_drawn_one(llm):
    wanted = [300, 5, 17]
    full = answer(llm, logprobs=20).outputs[0]
    output = answer(llm, logprob_token_ids=wanted).outputs[0]
    assert output.token_ids == full.token_ids
    for entry, other, token in zip(output.logprobs, full.logprobs, output.token_ids, strict=True):
        assert list(entry) == [token, *(one for one in wanted if one != token)]
        assert entry[token] == other[token]
        assert entry[token].rank == 1
        assert [entry[one].rank for one in wanted if one != token] == [None] * len(set(wanted) - {token})
    with pytest.raises(RequestError, match="does not go with use_beam_search"):
        answer(llm, logprob_token_ids=wanted, use_beam_search=True, beam_width=2)


def test_flat_log_probabilities_hold_the_same(llm):
    for extra in (
        {"logprobs": 3},
        {"logprob_token_ids": [4, 5]},
        {"n": 2, "temperature": 1.0, "seed": 1, "logprobs": 0},
    ):
        usual = answer(llm, prompt_logprobs=2, **extra)
        flat = answer(llm, prompt_logprobs=2, flat_logprobs=True, **extra)
        for one, other in zip(flat.outputs, usual.outputs, strict=True):
            assert isinstance(one.logprobs, FlatLogprobs)
            assert list(one.logprobs) == other.logprobs
            assert one.logprobs[-1] == other.logprobs[-1]
        assert list(flat.prompt_logprobs) == [{}, *usual.prompt_logprobs[1:]]
        assert usual.prompt_logprobs[0] is None


def test_m09_masked_tokens_can_be_written_as_json(model):
    with LLM(model, num_blocks=64, attn="attn_torch", logprobs_mode="processed_logprobs") as llm:
        output = answer(llm, top_k=1, temperature=1.0, logprobs=5, allowed_token_ids=[5, 6], logit_bias={6: -100})
    for entry, token in zip(output.outputs[0].logprobs, output.outputs[0].token_ids, strict=True):
        assert token in entry
        values = [one.logprob for one in entry.values()]
        assert min(values) == -9999.0
        json.dumps(values, allow_nan=False)


# -- parameters of neighbours -----------------------------------------------------------------------------------------


def test_m03_any_top_k_and_mixed_rows_draw_as_each_alone(llm):
    several = [{"top_k": k, "temperature": 1.0, "seed": 4} for k in (1, VOCAB - 1, VOCAB, VOCAB + 1, 10**7, 0, -1)]
    several += [{"temperature": 0}, {"temperature": 1.0, "seed": 9, "top_p": 0.5}]
    alone = [ids(llm, **values) for values in several]
    together = llm.generate(["the one"] * len(several), [params(**values) for values in several], use_tqdm=False)
    assert [output.outputs[0].token_ids for output in together] == alone
    assert alone[2] == alone[3] == alone[4] == alone[5] == alone[6], "as many as there are is off"
    assert alone[0] == alone[7], "the best alone is greedy"


def test_m06_a_bias_of_minus_100_changes_the_greedy_token(llm):
    (token,) = ids(llm, max_tokens=1)
    assert ids(llm, max_tokens=1, logit_bias={token: -100}) != [token]
    assert ids(llm, max_tokens=1, logit_bias={VOCAB - 1: 100}) == [VOCAB - 1]
    with pytest.raises(RequestError, match="outside the vocabulary of 320"):
        answer(llm, logit_bias={VOCAB: 1.0})


def test_m11_the_order_of_requests_changes_no_answer(llm):
    kinds = [{"repetition_penalty": 2.0}, {"seed": 99, "top_k": 1, "temperature": 1.0}, {}]
    alone = [ids(llm, **kind) for kind in kinds]
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        outputs = llm.generate(["the one"] * 3, [params(**kinds[i]) for i in order], use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == [alone[i] for i in order], order


def test_m12_a_short_prompt_beside_a_long_one_is_penalised_for_its_own_tokens_only(llm):
    short, long = [5, 6], list(range(40, 70))
    kind = {"frequency_penalty": 1.05, "logit_bias": {0: 3.0}}
    alone = ids(llm, short, **kind)
    outputs = llm.generate([short, long], [params(**kind), params()], use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == alone


def test_bad_words_are_not_written(llm):
    first, second = ids(llm, max_tokens=2)
    word = llm.tokenizer.decode([first])
    others = ids(llm, max_tokens=2, bad_words=[word])
    banned = {tuple(llm.tokenizer.encode(text, add_special_tokens=False)) for text in (word, " " + word.lstrip())}
    assert all(tuple(others[i : i + len(one)]) != one for one in banned for i in range(2))
    assert np.isfinite(second)


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_tell_the_life_of_a_request(llm):
    prompt = list(range(100, 150))
    answer(llm, prompt)
    metrics = answer(llm, prompt, n=2, temperature=1.0, max_tokens=5).metrics
    assert metrics.num_prompt_tokens == 50
    assert metrics.num_cached_tokens == 48
    assert metrics.num_generation_tokens == 10
    assert metrics.longest_output == 5
    times = [metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time]
    assert times == sorted(times)
    assert metrics.e2e_latency == pytest.approx(metrics.time_in_queue + metrics.prefill_time + metrics.decode_time)
    assert metrics.inference_time == pytest.approx(metrics.prefill_time + metrics.decode_time)
    assert metrics.time_to_first_token == pytest.approx(metrics.time_in_queue + metrics.prefill_time)
    assert metrics.mean_time_per_output_token == pytest.approx(metrics.decode_time / 4)


def test_times_that_are_not_known_are_none(llm):
    llm.engine.add_request("a", "the one", params())
    (output,) = llm.engine.abort(["a"])
    metrics = output.metrics
    assert metrics.time_in_queue is metrics.time_to_first_token is metrics.mean_time_per_output_token is None
    assert metrics.e2e_latency >= 0
    assert answer(llm, max_tokens=1).metrics.mean_time_per_output_token is None
