"""Beam search in the engine: the beams of transformers, by forks and table rows instead of copies.

The shadow executor's candidates hash everything a beam reads through its block table, so that the answers of a small
pool, of preempted and of chunked runs equal those of an ample one only if forking, freeing, copying and restarting are
right. `searched` is the algorithm written down plainly, without engine, over the same hash.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from paged_core import LLM
from paged_core.api.params import SamplingParams
from paged_core.api.sampler import SamplerNeed
from paged_core.errors import PluginContractError, RequestError
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.scripted import ScriptedExecutor, TableExecutor
from paged_core.testing.seams import PreemptNow
from paged_core.testing.shadow import ShadowExecutor
from paged_core.testing.tiny import write_tiny_llama
from paged_core.testing.tokenizer import ByteTokenizer


def beams(width, max_tokens=10, n=None, **more):
    more = {"ignore_eos": True, **more}
    return SamplingParams(
        use_beam_search=True, beam_width=width, n=n or width, temperature=0.0, max_tokens=max_tokens, **more
    )


def found(output):
    return [(one.token_ids, one.score) for one in output.outputs]


def searched(prompt, width, length):
    """Beam search without end tokens over the shadow executor's candidates."""
    low, high = 97, 123
    running = [(np.float32(0), [])]
    for _ in range(length):
        grown = []
        for cumulative, tokens in running:
            seen = np.array(prompt + tokens, dtype=np.int64).tobytes()
            digest = hashlib.blake2b(seen, key=b"", digest_size=8).digest()
            start, logprob = int.from_bytes(digest, "little"), np.float32(0)
            for rank in range(min(width, high - low)):
                logprob -= np.float32(np.float32(digest[rank % 8]) / 128 + np.float32(0.01))
                grown.append((cumulative + logprob, [*tokens, low + (start + rank) % (high - low)]))
        running = sorted(grown, key=lambda one: -one[0])[:width]
    return [(tokens, pytest.approx(float(cumulative) / length, rel=1e-5)) for cumulative, tokens in running]


@pytest.mark.parametrize("width", [1, 2, 4, 6])
@pytest.mark.parametrize("length", [5, 8])
def test_beams_are_those_of_the_plain_algorithm(shadow, drain, width, length):
    prompt = list(b"beam it up"[:length])
    engine = shadow(num_blocks=256)
    engine.add_request("r", prompt, beams(width))
    output = drain(engine)["r"]
    assert found(output) == searched(prompt, width, 10)
    assert {one.finish_reason for one in output.outputs} == {"length"}


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
@pytest.mark.parametrize("kind", ["swap", "recompute"])
@pytest.mark.parametrize("step", range(1, 10))
def test_beams_survive_preemption_at_any_step(shadow, drain, alloc, kind, step):
    prompt = list(b"preempted")
    forced = []

    def when(now, group):
        return now == step and group.id == "r"

    def wrap(inner):
        forced.append(PreemptNow(inner, when))
        return forced[0]

    engine = shadow(wrap, alloc=alloc, preempt=f"preempt_{kind}", num_blocks=48, token_budget=16)
    engine.add_request("r", prompt, beams(4))
    engine.add_request("mate", list(b"mate"), SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    output = drain(engine)["r"]
    assert forced[0].num_forced == 1
    assert found(output) == searched(prompt, 4, 10)


def test_beams_share_a_pool_that_is_too_small_for_all_of_them(shadow, drain):
    """Three searches of four beams compete for blocks; nothing but time is lost."""
    prompts = [list(b"first of all"), list(b"second"), list(b"the third one")]
    engine = shadow(num_blocks=26, num_host_blocks=8, preempt="preempt_swap")
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, beams(4, 12))
    outputs = drain(engine)
    assert sum(engine.stats().preemptions.values()) > 0
    assert [found(outputs[str(i)]) for i in range(3)] == [searched(prompt, 4, 12) for prompt in prompts]


def test_a_dropped_beam_frees_its_blocks_and_rows_at_once(shadow, drain):
    """At no time more than `width` tables, each with its own last block only: 3 shared + at most 4 own of 4 tokens."""
    engine = shadow(num_blocks=3 + 4 * 3)
    engine.add_request("r", list(range(1, 13)), beams(4, 11))
    assert found(drain(engine)["r"]) == searched(list(range(1, 13)), 4, 11)
    assert engine.stats().preemptions == {"swap": 0, "recompute": 0}


def test_a_beam_that_goes_on_keeps_its_row_and_only_last_blocks_are_copied(shadow):
    engine = shadow(num_blocks=256)
    executor = engine._executor
    executor.keep_plans = True
    engine.add_request("r", list(b"rows stay"), beams(4))
    while engine.has_unfinished:
        engine.step()
    rows = {int(row) for plan in executor.plans for row in plan.rows}
    assert len(rows) == 4
    for plan in executor.plans:
        assert len(plan.copies) <= 3
        assert {row for start in plan.started for row in [start.row]} <= rows


def logits_by_output(sequences, vocab=320, default=-50.0):
    """A model that knows `sequences`: {output so far: {token: log-probability}}."""

    def table(i):
        logits = torch.full((vocab,), default)
        for token, value in sequences[min(i, len(sequences) - 1)].items():
            logits[token] = value
        return logits

    return table


def by_table(plugins, table, **shape):
    made = EngineShape(num_blocks=256, **shape)
    need = SamplerNeed("cpu", 320, 32, eos_token_ids=(256,))
    executor = TableExecutor(table, plugins.create("sampler", "sample_torch", need))
    return build_engine(executor, made, plugins=plugins)


A, B, EOS = 65, 66, 256


def steps(*rows):
    """Normalised log-probabilities per output position, the same for every beam."""
    return logits_by_output([{token: float(np.log(p)) for token, p in row.items()} for row in rows], default=-60.0)


@pytest.mark.parametrize("num_prompt", [3, 30])
@pytest.mark.parametrize("alone", [True, False])
def test_m17_the_length_of_a_score_is_that_of_the_output_with_its_end_token(plugins, drain, num_prompt, alone):
    """B EOS sums to -1.0, B B B B B EOS to -1.4; per token the longer one wins, whatever the prompt."""
    table = steps({A: 0.4, B: 0.6}, {EOS: 0.6, B: 0.4}, {B: 1.0}, {B: 1.0}, {B: 1.0}, {EOS: 1.0})
    engine = by_table(plugins, table)
    params = beams(3, 8, ignore_eos=False, length_penalty=1.0, early_stopping="never")
    engine.add_request("r", list(range(1, num_prompt + 1)), params)
    if not alone:
        engine.add_request("mate", list(range(1, 21)), beams(3, 6))
    longest, _, shortest = drain(engine)["r"].outputs
    assert [one.finish_reason for one in (longest, shortest)] == ["stop", "stop"]
    assert longest.token_ids == [B, B, B, B, B, EOS]
    assert longest.score == pytest.approx(longest.cumulative_logprob / 6)
    assert shortest.token_ids == [B, EOS]
    assert shortest.score == pytest.approx(shortest.cumulative_logprob / 2)


def test_the_other_convention_counts_the_prompt_and_not_the_end_token(plugins, drain):
    """vLLM's: with a long prompt all lengths are about equal, so that the more probable short hypothesis wins."""
    table = steps({A: 0.4, B: 0.6}, {EOS: 0.6, B: 0.4}, {B: 1.0}, {B: 1.0}, {B: 1.0}, {EOS: 1.0})
    engine = by_table(plugins, table)
    params = beams(2, 8, ignore_eos=False, early_stopping="never", length_penalty_over="sequence")
    engine.add_request("r", list(range(1, 31)), params)
    first = drain(engine)["r"].outputs[0]
    assert first.token_ids == [B, EOS]
    assert first.score == pytest.approx(first.cumulative_logprob / 31)


def test_an_end_token_is_not_shown_and_min_tokens_put_it_off(plugins, drain):
    table = steps({A: 0.9, B: 0.1}, {EOS: 0.8, A: 0.2}, {EOS: 0.8, B: 0.2})
    engine = by_table(plugins, table)
    engine.add_request("r", [1, 2], beams(2, 8, ignore_eos=False, n=1))
    engine.add_request("late", [1, 2], beams(2, 8, ignore_eos=False, n=1, min_tokens=2))
    outputs = drain(engine)
    assert (outputs["r"].outputs[0].text, outputs["r"].outputs[0].token_ids) == ("A", [A, EOS])
    assert outputs["late"].outputs[0].token_ids == [A, A, EOS]


def test_a_stop_string_ends_a_beam_and_the_others_go_on(plugins, drain):
    table = steps({A: 0.6, B: 0.4}, {A: 0.6, B: 0.4}, {A: 0.6, B: 0.4})
    engine = by_table(plugins, table)
    engine.add_request("r", [1, 2], beams(2, 3, stop="AA", length_penalty=0.0))
    first, second = drain(engine)["r"].outputs
    assert (first.text, first.token_ids, first.finish_reason, first.stop_reason) == ("", [A, A], "stop", "AA")
    assert second.text in ("AB", "BA", "ABA", "BAB", "ABB", "BBA")
    assert first.score > second.score


@pytest.mark.parametrize("probabilities", [{A: 0.5, B: 0.3, 67: 0.2}, {EOS: 0.4, A: 0.3, B: 0.2, 67: 0.1}])
def test_penalties_follow_the_beam_not_the_row(plugins, drain, probabilities):
    """The frequency penalty of a beam counts its own tokens, though rows are taken over from other beams, and though
    the best token of a beam that goes on was an end token: that one was another hypothesis' token."""
    raw = {token: np.log(p) for token, p in probabilities.items()}

    def plain(width, length, penalty):
        running, finished = [(0.0, [])], []
        for _ in range(length):
            grown = []
            for cumulative, tokens in running:
                logits = {token: value - penalty * tokens.count(token) for token, value in raw.items()}
                norm = np.logaddexp.reduce(list(logits.values()))
                grown += [(cumulative + value - norm, [*tokens, token]) for token, value in logits.items()]
            grown.sort(key=lambda one: -one[0])
            finished += [one for one in grown[:width] if one[1][-1] == EOS]
            running = [one for one in grown if one[1][-1] != EOS][:width]
        return sorted(finished + running, key=lambda one: -one[0])[:width]

    engine = by_table(plugins, steps(probabilities))
    params = beams(3, 6, frequency_penalty=1.5, length_penalty=0.0, ignore_eos=False, early_stopping="never")
    engine.add_request("r", [1, 2], params)
    outputs = drain(engine)["r"].outputs
    want = plain(3, 6, 1.5)
    assert [one.score for one in outputs] == pytest.approx([cumulative for cumulative, _ in want], rel=1e-5)
    assert sorted(outputs[0].token_ids) == sorted(want[0][1])


def test_fewer_beams_run_on_when_stop_strings_leave_fewer(plugins, drain):
    """In the third step only B can be sampled, and it completes the first beam's stop string: two of three go on."""
    table = logits_by_output([{A: -1.0, 67: -1.1, 68: -1.2}, {A: 0.0}, {B: 0.0}], default=-float("inf"))
    engine = by_table(plugins, table)
    engine.add_request("r", [1, 2], beams(3, 5, stop="AAB"))
    outputs = drain(engine)["r"].outputs
    assert sorted((one.text, one.finish_reason) for one in outputs) == [
        ("", "stop"),
        ("CABBB", "length"),
        ("DABBB", "length"),
    ]


def test_an_end_behind_the_best_width_continuations_is_no_hypothesis(plugins, drain):
    """B EOS is third of four at width 2: it neither runs on nor is it finished, though it beats what follows."""
    table = steps({A: 0.55, B: 0.45}, {EOS: 0.48, 67: 0.47}, {68: 0.4, 69: 0.3, 70: 0.3})
    engine = by_table(plugins, table)
    params = beams(2, 3, ignore_eos=False, length_penalty=0.0, early_stopping="never")
    engine.add_request("r", [1, 2], params)
    assert [one.token_ids for one in drain(engine)["r"].outputs] == [[A, EOS], [A, 67, 68]]


@pytest.mark.parametrize("num_logprobs", [0, 3])
def test_logprobs_are_those_of_the_beams_own_path(plugins, drain, num_logprobs):
    table = steps({A: 0.6, B: 0.4}, {A: 0.5, B: 0.3, 67: 0.2}, {A: 0.7, 67: 0.3})
    engine = by_table(plugins, table)
    engine.add_request("r", [1, 2], beams(3, 3, logprobs=num_logprobs))
    for one in drain(engine)["r"].outputs:
        path = [entry[token] for token, entry in zip(one.token_ids, one.logprobs, strict=True)]
        assert sum(item.logprob for item in path) == pytest.approx(one.cumulative_logprob, rel=1e-5)
        assert all(num_logprobs <= len(entry) <= num_logprobs + 1 for entry in one.logprobs)
        assert [item.decoded_token for item in path] == [chr(token) for token in one.token_ids]


def test_no_more_beams_are_returned_than_could_be_formed(plugins, drain):
    engine = by_table(plugins, logits_by_output([{A: 0.0}], default=-float("inf")))
    engine.add_request("r", [1, 2], beams(3, 4))
    assert [one.text for one in drain(engine)["r"].outputs] == ["AAAA"]


def test_aborted_beams_give_what_there_is_and_the_blocks_back(shadow):
    engine = shadow()
    engine.add_request("waits", list(b"never ran"), beams(3))
    (output,) = engine.abort(["waits"])
    assert [one.finish_reason for one in output.outputs] == ["abort"] * 3
    engine.add_request("runs", list(b"gone"), beams(3, n=2))
    for _ in range(5):
        engine.step()
    (output,) = engine.abort(["runs"])
    assert [len(one.token_ids) for one in output.outputs] == [5, 5]
    assert output.outputs[0].score >= output.outputs[1].score
    engine.check()


def test_beams_that_outgrow_the_pool_end_with_length(shadow, drain):
    engine = shadow(num_blocks=10)
    engine.add_request("r", list(b"outgrows"), beams(4, 40))
    output = drain(engine)["r"]
    assert {one.finish_reason for one in output.outputs} == {"length"}
    assert "the whole KV pool holds 40" in output.error


def test_logits_that_fail_end_the_search_alone(plugins, drain):
    good = steps({A: 0.6, B: 0.4})

    def table(i):
        return torch.full((320,), float("nan")) if i == 3 else good(i)

    engine = by_table(plugins, table)
    engine.add_request("r", [1, 2], beams(2, 6))
    engine.add_request("mate", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=3))
    outputs = drain(engine)
    assert [one.finish_reason for one in outputs["r"].outputs] == ["error", "error"]
    assert "NaN" in outputs["r"].error
    assert outputs["mate"].outputs[0].token_ids == [A, A, A]


def test_a_sampler_without_candidates_is_named(plugins):
    engine = build_engine(ScriptedExecutor([A, A, A]), EngineShape(), plugins=plugins)
    engine.add_request("r", [1], beams(2))
    with pytest.raises(PluginContractError, match="gave no candidates"):
        engine.step()


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"n": 5}, "n"),
        ({"best_of": 4}, "best_of"),
        ({"length_penalty_over": "words"}, "length_penalty_over"),
    ],
)
def test_what_cannot_compose_with_beams_is_refused_by_name(more, field):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{"use_beam_search": True, "beam_width": 3, "temperature": 0.0, **more})
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["beam_width", "length_penalty", "early_stopping"])
def test_parameters_of_beam_search_mean_nothing_without_it(name):
    with pytest.raises(RequestError, match="use_beam_search"):
        SamplingParams(**{name: {"beam_width": 2, "length_penalty": 0.5, "early_stopping": True}[name]})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def reference(tiny):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


def generate(model, prompt, params, eos):
    """Beams and scores of transformers; padding behind the first end token removed."""
    with torch.inference_mode():
        answer = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=params.beam_width,
            num_return_sequences=params.n,
            do_sample=False,
            max_new_tokens=params.max_tokens,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            eos_token_id=eos,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    result = []
    for tokens, score in zip(
        answer.sequences[:, len(prompt) :].tolist(), answer.sequences_scores.tolist(), strict=True
    ):
        ends = [i for i, token in enumerate(tokens) if token in eos]
        result.append((tokens[: ends[0] + 1] if ends else tokens, pytest.approx(score, rel=1e-4)))
    return result


PROMPTS = [[5, 6, 7], [10, 11, 12, 13, 14, 15, 16], list(range(20, 45))]


@pytest.mark.parametrize("width", [2, 4, 6])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
def test_beams_and_scores_are_those_of_transformers(tiny, reference, width, early_stopping, length_penalty):
    """All prompts in one batch, on a pool of small blocks; an end token that is often drawn besides EOS."""
    params = beams(
        width,
        12,
        ignore_eos=False,
        early_stopping=early_stopping,
        length_penalty=length_penalty,
        stop_token_ids=[40],
    )
    with LLM(str(tiny), dtype="float32", max_model_len=64, block_size=4, num_blocks=128, audit=True) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert found(output) == generate(reference, prompt, params, [256, 40])


@pytest.mark.parametrize("attn", ["attn_torch", "attn_cpu"])
@pytest.mark.parametrize("preempt", ["preempt_swap", "preempt_recompute"])
def test_transformers_beams_come_out_of_a_pool_too_small_for_all(tiny, reference, attn, preempt):
    params = beams(4, 12, ignore_eos=False)
    options = {"dtype": "float32", "max_model_len": 64, "block_size": 4, "attn": attn, "preempt": preempt}
    with LLM(str(tiny), num_blocks=22, audit=True, **options) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        assert sum(llm.engine.stats().preemptions.values()) > 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert found(output) == generate(reference, prompt, params, [256])


def test_beams_take_prefix_hits_and_chunks_without_a_change(shadow, drain):
    prompt = list(b"the same beginning of all")
    want = searched(prompt, 3, 8)
    engine = shadow(num_blocks=128, token_budget=16)
    for i in range(2):
        engine.add_request(str(i), prompt, beams(3, 8))
        assert found(drain(engine)[str(i)]) == want
    assert engine.stats().blocks.prefix_hits > 0


def test_nothing_of_a_search_stays_behind(shadow, drain):
    executor = ShadowExecutor(4)
    engine = build_engine(executor, EngineShape(tokenizer=ByteTokenizer()))
    for i in range(20):
        engine.add_request(str(i), list(b"again and again"[: 3 + i % 9]), beams(1 + i % 5, 6))
    engine.step()
    engine.abort([str(i) for i in range(0, 20, 3)])
    drain(engine)
    for _ in range(4):
        engine.add_request("aborted", list(b"half way"), beams(4, 30))
        for _ in range(3):
            engine.step()
        engine.abort(["aborted"])
    books = engine._ledger.beams
    assert not books
    assert not books._running
    assert not books.changed
    assert not books.wanted.any()
