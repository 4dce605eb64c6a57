"""Samplers: greedy choice, the distribution of random draws, filters, input formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_conformance.benches.sampler import MAX_ROWS, VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.sampler import chi_square, distribution

pytestmark = layer("behaviour")

FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 5},
    {"top_p": 0.6},
    {"top_k": 12, "top_p": 0.8, "temperature": 1.5},
]


def draw_counts(sampler, logits, seed, **values):
    """How often each token was drawn: 64 rows with seeds of their own, at many positions."""
    bench = SamplerBench(sampler, len(logits))
    for number in range(MAX_ROWS):
        bench.start(number, Row(params(**values), seed=1000 * seed + number))
    counts = np.zeros(len(logits), dtype=np.int64)
    for _ in range(20 if sampler.quick or len(logits) > VOCAB else 120):
        counts += np.bincount(bench.sample(dict.fromkeys(range(MAX_ROWS), logits)).tokens, minlength=len(logits))
    return counts


def check_distribution(sampler, seed, values):
    logits = spread(seed)
    counts, wanted = draw_counts(sampler, logits, seed, **values), distribution(logits.astype(float), params(**values))
    forbidden = np.flatnonzero((wanted == 0) & (counts > 0))
    assert not len(forbidden), f"{values}: drew tokens {forbidden.tolist()}, which the filters leave out"
    statistic, bound = chi_square(counts, wanted)
    assert statistic < bound, (
        f"draws of {values or 'plain softmax'} do not follow the filtered softmax: chi-square {statistic:.1f} over "
        f"{int((wanted > 0).sum())} tokens, an honest sampler stays below {bound:.1f}; "
        f"drawn {counts.tolist()}, expected {np.round(counts.sum() * wanted, 1).tolist()}"
    )


@pytest.mark.parametrize("values", FILTERS, ids=str)
def test_draws_follow_the_filtered_softmax(sampler, values):
    check_distribution(sampler, 1, values)


@pytest.mark.parametrize("seed", [2, 3])
def test_draws_follow_the_softmax_for_other_seeds(sampler, seed):
    check_distribution(sampler, seed, {})


@pytest.mark.parametrize(
    "values", [{}, {"top_k": 600}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.8}, {"top_p": 0.01}], ids=str
)
def test_a_larger_vocabulary_is_cut_and_drawn_exactly(sampler, values):
    """Samplers look at the best few tokens first; with nearly level logits the cut lies far behind them."""
    logits = spread(6, vocab=3000, step=0.001)
    counts, wanted = draw_counts(sampler, logits, 6, **values), distribution(logits.astype(float), params(**values))
    beyond = np.flatnonzero((wanted == 0) & (counts > 0))
    assert len(beyond) == 0, f"{values}: drew {len(beyond)} tokens that the filters leave out, {beyond[:5]} among them"
    alive = np.argsort(-wanted)[: int((wanted > 0).sum())]
    bins = np.array_split(alive, min(16, len(alive)))  # best first, so that a cut too early empties the last one
    statistic, bound = chi_square(
        np.array([counts[part].sum() for part in bins]), np.array([wanted[part].sum() for part in bins])
    )
    assert statistic < bound, f"{values}: chi-square {statistic:.1f} over {len(bins)} bins, honest below {bound:.1f}"


@requires("min_p")
@pytest.mark.parametrize("values", [{"min_p": 0.3}, {"min_p": 0.1, "top_p": 0.7, "temperature": 1.5}], ids=str)
def test_min_p_keeps_what_is_likely_enough_beside_the_best(sampler, values):
    check_distribution(sampler, 4, values)


@pytest.mark.parametrize("top_k", [2, 3, 5, VOCAB - 1])
def test_top_k_draws_from_exactly_the_k_best(sampler, top_k):
    """Case M03: nearly level logits, so that every token that may come does come."""
    logits = spread(5, step=0.01)
    drawn = np.flatnonzero(draw_counts(sampler, logits, 5, top_k=top_k))
    best = np.sort(np.argsort(-logits)[:top_k])
    assert drawn.tolist() == best.tolist(), f"top_k={top_k} drew {drawn.tolist()}; the best are {best.tolist()}"


@requires("seed")
@pytest.mark.parametrize("top_k", [-1, 0, VOCAB, VOCAB + 1, 10**7])
def test_top_k_of_nothing_or_of_the_whole_vocabulary_is_off(sampler, top_k):
    """Case M03: k beyond the vocabulary crashed; 0 and -1 mean off."""
    plain, bench = SamplerBench(sampler), SamplerBench(sampler)
    plain.start(0, Row(params(), seed=3))
    bench.start(0, Row(params(top_k=top_k), seed=3))
    wanted, got = plain.run(0, spread(), 20), bench.run(0, spread(), 20)
    assert got == wanted, f"top_k={top_k} over {VOCAB} tokens must be as good as none"


def test_greedy_takes_the_best_token_whatever_the_filters(sampler):
    bench = SamplerBench(sampler)
    for number, values in enumerate([{}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.2}]):
        bench.start(number, Row(params(temperature=0, **values)))
    for seed in range(20):
        logits = spread(seed)
        tokens = bench.sample(dict.fromkeys(range(4), logits)).tokens.tolist()
        assert tokens == [int(logits.argmax())] * 4, f"greedy rows drew {tokens}; the best is {int(logits.argmax())}"


def test_top_k_of_one_is_greedy(sampler):
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(top_k=1, temperature=5.0), seed=1))
    for seed in range(10):
        logits = spread(seed, step=0.01)
        assert bench.sample({0: logits}).tokens[0] == logits.argmax(), f"top_k=1 missed the best token, logits {seed}"


def test_greedy_breaks_ties_alike_in_every_batch(sampler):
    """Case M25: greedy tokens must not depend on the batch, equals included."""
    tied = np.zeros(VOCAB, dtype=np.float32)
    tied[[4, 9, 20]] = 1.0
    alone, crowd = SamplerBench(sampler), SamplerBench(sampler)
    alone.start(0, Row(params(temperature=0)))
    token = int(alone.sample({0: tied}).tokens[0])
    assert token in (4, 9, 20), f"greedy drew {token}; the best tokens are 4, 9 and 20"
    for number in range(16):
        crowd.start(number, Row(params(temperature=number % 2), seed=number))
    tokens = crowd.sample({n: spread(n) if n % 2 else tied for n in range(16)}).tokens[::2].tolist()
    assert tokens == [token] * 8, f"among equals a lone row took {token}, rows in a batch {tokens}"


def forms(logits):
    """The same float32 [rows, vocab] logits as callers may hand them over."""
    rows, vocab = logits.shape
    wide = torch.full((2 * rows, vocab + 5), 99.0)
    wide[::2, 3 : 3 + vocab] = logits
    return {
        "rows of a wider tensor": wide[::2, 3 : 3 + vocab],
        "transposed": logits.t().contiguous().t(),
        "bfloat16": logits.bfloat16(),
        "float16": logits.half(),
    }


@pytest.mark.parametrize("form", ["rows of a wider tensor", "transposed", "bfloat16", "float16"])
def test_logits_of_any_strides_and_float_type_are_read_alike(sampler, form):
    exact = torch.from_numpy(np.stack([spread(seed, step=0.125) for seed in range(8)]))  # exact in bfloat16 too
    given = forms(exact)[form]
    assert torch.equal(given.float(), exact)
    temperatures = [0, 1] if sampler.has("seed") else [0]
    tokens = []
    for logits in (exact.clone(), given):
        bench = SamplerBench(sampler)
        for number in range(8):
            bench.start(number, Row(params(temperature=temperatures[number % len(temperatures)]), seed=number))
        tokens.append(bench.sample_tensor(list(range(8)), logits).tokens.tolist())
    assert tokens[0] == tokens[1], f"contiguous float32 logits gave {tokens[0]}; {form}: {tokens[1]}"
