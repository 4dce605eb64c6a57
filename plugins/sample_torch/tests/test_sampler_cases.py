"""Laws and public bug reports: what a row draws is its own affair, and one bad row harms nobody."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import torch
from paged_sample_torch import sampler as sampler_module
from paged_sample_torch.logprobs import MIN_LOGPROB

from paged_core.errors import PluginContractError

VOCAB = 1000
NAN, INF = float("nan"), float("inf")


def logits_of(seed, vocab=VOCAB, spread=2.0):
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


MIX = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "top_k": 600, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "frequency_penalty": 0.8, "presence_penalty": 0.4},
    {"temperature": 1.0, "logit_bias": {3: 5.0}, "logprobs": 3},
    {"temperature": 0.0, "allowed_token_ids": [5, 6, 900], "logprobs": 0},
    {"temperature": 1.0, "min_tokens": 3, "stop_token_ids": [11]},
]


def tokens_by_row(bench, rows, steps=4):
    """Tokens of each row of MIX when these rows run together, in this order."""
    batch = bench(VOCAB, [7])
    for row in rows:
        batch.start(row, prompt=[row, 1, 2], seed=100 + row, **MIX[row])
    drawn = {row: [] for row in rows}
    for step in range(steps):
        result = batch.sample({row: logits_of(31 * row + step) for row in rows})
        for i, row in enumerate(rows):
            drawn[row].append(int(result.tokens[i]))
    return drawn


def test_law_16_tokens_are_the_same_alone_in_a_batch_and_in_any_order(bench):
    everyone = list(range(len(MIX)))
    alone = {row: tokens_by_row(bench, [row])[row] for row in everyone}
    shuffler = random.Random(1)
    for _ in range(6):
        assert tokens_by_row(bench, everyone) == alone
        shuffler.shuffle(everyone)
    assert tokens_by_row(bench, everyone[:4]) == {row: alone[row] for row in everyone[:4]}


def test_law_16_holds_for_batches_larger_than_one_chunk(bench, monkeypatch):
    everyone = list(range(len(MIX)))
    whole = tokens_by_row(bench, everyone)
    monkeypatch.setitem(sampler_module.CHUNK_ELEMENTS, "cpu", 3 * VOCAB)
    assert tokens_by_row(bench, everyone) == whole


def test_law_16_logprobs_do_not_depend_on_the_batch(bench):
    batch = bench(VOCAB)
    table = torch.stack([logits_of(i) for i in range(9)])
    targets = np.arange(9, dtype=np.int32)
    whole = batch.sampler.logprobs(table, targets, 5)
    for i in range(9):
        one = batch.sampler.logprobs(table[i : i + 1], targets[i : i + 1], 5)
        assert all(
            np.array_equal(ours[i : i + 1], alone) for ours, alone in zip(_arrays(whole), _arrays(one), strict=True)
        )


def _arrays(top):
    return top.chosen, top.rank, top.token_ids, top.logprobs


def test_preemption_starting_anew_in_another_row_continues_the_same_draws(bench):
    params = {"seed": 5, "temperature": 1.0, "repetition_penalty": 1.2, "bad_words_token_ids": [[3, 4]]}
    undisturbed = bench(50)
    undisturbed.start(0, [1, 2], **params)
    want = undisturbed.run(0, logits_of(1, 50), 12)
    batch = bench(50)
    batch.start(0, [1, 2], **params)
    got = batch.run(0, logits_of(1, 50), 5)
    batch.sampler.end(0)
    batch.start(9, [1, 2], got, **params)
    assert got + batch.run(9, logits_of(1, 50), 7) == want


def test_m01_museum_28_branches_of_one_seed_differ_and_repeat(bench):
    def draw():
        batch = bench(VOCAB)
        for branch in range(4):
            batch.start(branch, seed=1, branch=branch, temperature=1.0)
        return [batch.run(branch, logits_of(0), 12) for branch in range(4)]

    first = draw()
    assert draw() == first
    assert len({tuple(branch) for branch in first}) == 4


@pytest.mark.parametrize("top_k", [VOCAB, VOCAB + 1, 10**7, 0, -1])
def test_m03_top_k_of_the_vocabulary_or_more_zero_and_minus_one_are_off(bench, top_k):
    batch = bench(VOCAB)
    batch.start(0, seed=3, temperature=2.0, top_k=top_k)
    batch.start(1, seed=3, temperature=2.0)
    assert batch.run(0, logits_of(2), 20) == batch.run(1, logits_of(2), 20)


@pytest.mark.parametrize("top_k", [1, 29])
def test_m03_top_k_keeps_exactly_k_tokens(bench, top_k):
    batch = bench(30)
    batch.start(0, seed=3, temperature=100.0, top_k=top_k)
    assert set(batch.run(0, torch.linspace(0, 1, 30), 400)) == set(range(30 - top_k, 30))


def test_m06_a_bias_of_minus_100_on_the_greedy_token_changes_it(bench):
    batch = bench(VOCAB)
    x = logits_of(4)
    best = int(x.argmax())
    batch.start(0, temperature=0.0, logit_bias={best: -100})
    assert batch.run(0, x, 1) == [int(x.topk(2).indices[1])]


def test_m09_museum_39_masked_tokens_never_reach_the_reader_as_infinity(bench):
    """Chosen and listed log-probabilities are finite numbers; the sampled token has its own, whatever was masked."""
    x = torch.full((VOCAB,), -INF)
    x[[4, 8]] = torch.tensor([1.0, 0.0])
    batch = bench(VOCAB)
    batch.start(0, temperature=0.0, top_k=1, logprobs=5)
    batch.start(1, temperature=0.0, logprobs=5, logit_bias={4: -100})
    result = batch.sample({0: x, 1: x})
    for draw, token in ((0, 4), (1, 8)):
        top = result.logprobs[draw]
        assert result.tokens[draw] == token
        assert top.token_ids[0, :2].tolist() == [4, 8], "the logits before any edit"
        assert top.logprobs[0, 2:].tolist() == [MIN_LOGPROB] * 3
        json.dumps([top.chosen.tolist(), top.logprobs.tolist()], allow_nan=False)
    assert result.logprobs[0].chosen[0] == pytest.approx(-np.log1p(np.exp(-1)))
    assert (result.logprobs[0].rank[0], result.logprobs[1].rank[0]) == (1, 2)


def test_m11_museum_31_penalties_do_not_depend_on_the_order_of_requests(bench):
    requests = {
        0: {"repetition_penalty": 2.0, "temperature": 0.0},
        1: {"seed": 99, "top_k": 1, "temperature": 1.0},
        2: {"temperature": 0.0},
    }

    def run(order):
        batch = bench(VOCAB)
        for row in order:
            batch.start(row, prompt=[5, 6, 7], **requests[row])
        steps = [batch.sample({row: logits_of(row) for row in order}).tokens.tolist() for _ in range(5)]
        return {row: [step[i] for step in steps] for i, row in enumerate(order)}

    solo = {row: run([row])[row] for row in requests}
    assert all(run(order) == solo for order in itertools.permutations(requests))
    assert len(set(solo[0])) == 5, "the penalty is at work"


def test_m12_a_short_prompt_beside_a_long_one_has_no_padding_to_penalise(bench):
    """Token 0, what a dense matrix would be padded with, is the attractive one."""
    x = torch.zeros(VOCAB)
    x[0] = 1.0
    batch = bench(VOCAB)
    batch.start(0, prompt=[3, 4], temperature=0.0, frequency_penalty=1.05, repetition_penalty=3.0)
    batch.start(1, prompt=list(range(1, 31)), temperature=0.0, frequency_penalty=1.05)
    assert batch.sample({0: x, 1: x}).tokens.tolist() == [0, 0]


@pytest.mark.parametrize("min_tokens", [0, 1, 3])
@pytest.mark.parametrize("stop", [{}, {"stop_token_ids": [9]}])
def test_m14_museum_43_end_tokens_come_exactly_when_min_tokens_allow(bench, min_tokens, stop):
    x = torch.zeros(20)
    x[[7, 9]] = torch.tensor([50.0, 60.0])  # end-of-sequence, and what is a stop id in one of the two cases
    x[4] = 10.0
    batch = bench(20, [7])
    batch.start(0, prompt=[1, 2], temperature=0.0, min_tokens=min_tokens, **stop)
    other = 4 if stop else 9
    assert batch.run(0, x, min_tokens + 1) == [other] * min_tokens + [9]


def test_m16_ignore_eos_is_no_matter_of_the_sampler(bench):
    """The end-of-sequence token may be drawn; the engine goes on. User stop ids are masked by min_tokens alone."""
    x = torch.zeros(20)
    x[7] = 5.0
    batch = bench(20, [7, 8])
    batch.start(0, temperature=0.0, ignore_eos=True, stop_token_ids=[11])
    assert batch.run(0, x, 3) == [7, 7, 7]


def test_museum_29_a_seeded_row_is_stable_beside_unseeded_ones(bench):
    runs = []
    for attempt in range(20):
        batch = bench(VOCAB)
        batch.start(0, seed=42, temperature=1.0)
        batch.start(1, seed=attempt * 7919, temperature=1.0)
        runs.append([batch.sample({0: logits_of(0), 1: logits_of(1)}).tokens.tolist() for _ in range(4)])
    assert len({tuple(step[0] for step in run) for run in runs}) == 1
    assert len({tuple(step[1] for step in run) for run in runs}) > 10


def test_museum_30_global_generators_are_neither_read_nor_moved(bench):
    def run():
        batch = bench(VOCAB)
        batch.start(0, seed=1, temperature=1.0, top_p=0.9)
        return batch.run(0, logits_of(0), 5)

    torch.manual_seed(1)
    first, numpy_state, torch_state = run(), np.random.get_state()[1].copy(), torch.get_rng_state()
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(torch.get_rng_state(), torch_state)
    torch.manual_seed(2)
    assert run() == first


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}])
@pytest.mark.parametrize("mask", [{}, {"allowed_token_ids": [2, 3]}])
def test_museum_39_a_row_with_nan_fails_alone(bench, params, mask):
    broken = logits_of(0)
    broken[17] = NAN
    batch = bench(VOCAB)
    batch.start(0, **params, **mask, logprobs=2)
    batch.start(1, **params, logprobs=2)
    want = batch.sample({1: logits_of(1)}).tokens.tolist()
    batch.start(1, **params, logprobs=2)
    result = batch.sample({0: broken, 1: logits_of(1)}, {0: 4})
    assert list(result.failed) == [0]
    assert "NaN" in result.failed[0]
    assert result.tokens.tolist() == [0, *want]
    assert list(result.logprobs) == [1]
    assert result.candidates == {}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_everything_is_masked_fails_alone(bench, temperature):
    batch = bench(5, [2])
    batch.start(0, temperature=temperature)
    batch.start(1, temperature=temperature, allowed_token_ids=[2, 3], bad_words_token_ids=[[3]], min_tokens=1)
    batch.start(2, temperature=temperature, allowed_token_ids=[4])
    result = batch.sample({0: torch.full((5,), -INF), 1: torch.zeros(5), 2: torch.zeros(5)})
    assert sorted(result.failed) == [0, 1]
    assert "masked" in result.failed[1]
    assert result.tokens[2] == 4


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}])
def test_infinite_logits_are_understood(bench, params):
    x = logits_of(0)
    x[:500] = -INF
    x[[700, 800]] = INF
    batch = bench(VOCAB)
    batch.start(0, seed=2, **params, logprobs=3)
    seen = set(batch.run(0, x, 40))
    assert seen == ({700} if params["temperature"] == 0 else {700, 800})
    top = batch.sample({0: x}).logprobs[0]
    assert top.chosen[0] == pytest.approx(np.log(0.5))
    assert top.token_ids[0, :2].tolist() == [700, 800]


def test_greedy_ties_go_to_the_lowest_id(bench):
    x = torch.zeros(VOCAB)
    x[[300, 20, 999]] = 1.0
    batch = bench(VOCAB)
    batch.start(0, temperature=0.0)
    batch.start(1, temperature=0.0, presence_penalty=0.1)
    assert batch.sample({0: x, 1: x}).tokens.tolist() == [20, 20]


def test_museum_40_logprobs_zero_is_the_sampled_token_only(bench):
    batch = bench(VOCAB)
    batch.start(0, temperature=0.0, logprobs=0)
    batch.start(1, temperature=0.0)
    result = batch.sample({0: logits_of(0), 1: logits_of(0)})
    assert list(result.logprobs) == [0]
    assert result.logprobs[0].token_ids.shape == (1, 0)
    assert result.logprobs[0].rank.tolist() == [1]


def test_logprobs_are_those_of_the_raw_logits_with_rank_and_order(bench):
    x = logits_of(6)
    x[5] = x[6]  # equals share the better rank and are listed by id
    batch = bench(VOCAB)
    batch.start(0, seed=9, temperature=2.0, logprobs=20, repetition_penalty=1.5, top_k=100)
    result = batch.sample({0: x})
    reference = torch.log_softmax(x.double(), -1)
    token, top = int(result.tokens[0]), result.logprobs[0]
    assert top.chosen[0] == pytest.approx(float(reference[token]), abs=1e-5)
    assert top.rank[0] == 1 + int((x > x[token]).sum())
    assert top.token_ids[0].tolist() == sorted(range(VOCAB), key=lambda t: (-float(x[t]), t))[:20]
    np.testing.assert_allclose(top.logprobs[0], reference[top.token_ids[0]], atol=1e-5)
    assert batch.sampler.logprobs(x[None], np.array([5], dtype=np.int32), 0).rank.tolist() == [
        1 + int((x > x[5]).sum())
    ]


def test_prompt_logprobs_of_a_broken_row_are_finite(bench):
    table = torch.stack((logits_of(0), torch.full((VOCAB,), NAN)))
    top = bench(VOCAB).sampler.logprobs(table, np.array([1, 2], dtype=np.int32), 10**6)
    assert top.logprobs.shape == (2, VOCAB)
    assert (top.logprobs[1] == MIN_LOGPROB).all()
    assert top.chosen[1] == MIN_LOGPROB
    assert np.exp(top.logprobs[0].astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)


def test_museum_42_strided_and_half_precision_logits_give_the_same_tokens(bench):
    wide = torch.stack([logits_of(i, 2 * VOCAB) for i in range(4)])
    rows, positions = np.arange(4, dtype=np.int32), np.full(4, 1, dtype=np.int32)
    for view in (wide[:, ::2], wide[:, :VOCAB], wide.bfloat16()[:, :VOCAB], wide.double()[:, :VOCAB]):
        drawn = []
        for logits in (view, view.float().contiguous()):
            batch = bench(VOCAB)
            for row in range(4):
                batch.start(row, temperature=float(row % 2), logprobs=1 if row > 1 else None)
            drawn.append(batch.sampler.sample(logits, rows, positions).tokens.tolist())
        assert drawn[0] == drawn[1]


def test_candidates_are_the_best_of_the_edited_logits_without_the_masked(bench):
    x = logits_of(8, 10)
    batch = bench(10, [7])
    batch.start(0, temperature=0.0, min_tokens=1, logit_bias={3: 100.0})
    batch.start(1, temperature=0.0, allowed_token_ids=[2, 4])
    batch.start(2, temperature=0.0)
    result = batch.sample({0: x, 1: x, 2: x}, {0: 4, 1: 6})
    edited = x.clone()
    edited[3] += 100
    edited[7] = -INF
    assert sorted(result.candidates) == [0, 1]
    assert result.candidates[0].token_ids[0].tolist() == edited.topk(4).indices.tolist()
    np.testing.assert_allclose(
        result.candidates[0].logprobs[0], torch.log_softmax(edited, -1).topk(4).values, atol=1e-5
    )
    assert sorted(result.candidates[1].token_ids[0].tolist()) == [2, 4]
    assert result.logprobs == {}


def test_bad_words_forbid_only_the_token_that_would_complete_them(bench):
    x = torch.zeros(10)
    x[5], x[6] = 3.0, 2.0
    batch = bench(10)
    batch.start(0, prompt=[5, 5], temperature=0.0, bad_words_token_ids=[[5, 5, 5], [6], [999], [5, 999]])
    assert batch.run(0, x, 6) == [5, 5, 0, 5, 5, 0], "matched in the output alone, not in the prompt"


def test_ids_outside_the_vocabulary_are_of_no_effect(bench):
    batch = bench(10, [7, 4000])
    batch.start(0, temperature=0.0, min_tokens=2, stop_token_ids=[99], allowed_token_ids=[3, 88], logit_bias={77: 5})
    assert batch.run(0, torch.zeros(10), 2) == [3, 3]


def test_a_row_that_was_not_started_is_refused_and_ending_unknown_rows_is_not(bench):
    batch = bench(10)
    batch.start(2, temperature=0.0)
    batch.sampler.end(2)
    batch.sampler.end(63)
    batch.sampler.end(10_000)
    with pytest.raises(PluginContractError, match=r"\[2\].*never started"):
        batch.sample({2: torch.zeros(10)})


def test_a_greedy_batch_costs_one_argmax(bench, monkeypatch):
    """Neither copies nor softmaxes: the other paths are not entered, once min_tokens is behind."""
    batch = bench(VOCAB, [7])
    for row in range(8):
        batch.start(row, temperature=0.0, min_tokens=row % 2)
    logits = {row: logits_of(row) for row in range(8)}
    batch.sample(logits)
    for name in ("draw", "apply_edits", "top_logprobs", "best_tokens"):
        monkeypatch.setattr(sampler_module, name, None)
    monkeypatch.setattr(sampler_module.TorchSampler, "_choose", None)
    assert batch.sample(logits).tokens.tolist() == [int(logits[row].argmax()) for row in range(8)]
