"""The whole order of operations against plain Python, row by row, and the draw's distribution against the softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_sample_torch import draw as draw_module
from paged_sample_torch.draw import DrawParams, draw
from paged_sample_torch.logprobs import best_tokens
from paged_sample_torch.uniform import stream_key, uniforms

from paged_core.api.params import SamplingParams

VOCAB = 12
EOS = (7,)
token = st.integers(0, VOCAB - 1)
tokens = st.lists(token, max_size=8)


@st.composite
def row(draw_from):
    """Everything that decides one token. Logits are quarters, so that ties and exact cuts are common."""
    params = {
        "temperature": draw_from(st.sampled_from([0.0, 0.5, 1.0, 1.7, 30.0])),
        "top_k": draw_from(st.sampled_from([-1, 0, 0, 1, 2, 5, VOCAB - 1, VOCAB, VOCAB + 1, 10**7])),
        "top_p": draw_from(st.sampled_from([1.0, 1.0, 1e-6, 0.1, 0.5, 0.9, 0.999])),
        "min_p": draw_from(st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0])),
        "repetition_penalty": draw_from(st.sampled_from([1.0, 1.0, 0.5, 1.3, 2.0])),
        "frequency_penalty": draw_from(st.sampled_from([0.0, 0.0, -1.0, 0.7, 2.0])),
        "presence_penalty": draw_from(st.sampled_from([0.0, 0.0, -0.5, 1.5])),
        "logit_bias": draw_from(st.none() | st.dictionaries(token, st.sampled_from([-100, -1, 0.5, 100]), max_size=3)),
        "allowed_token_ids": draw_from(st.none() | st.none() | st.lists(token, min_size=1, max_size=5)),
        "min_tokens": draw_from(st.sampled_from([0, 0, 1, 4])),
        "stop_token_ids": draw_from(st.lists(token, max_size=2)),
    }
    bad_words = draw_from(st.lists(st.lists(token, min_size=1, max_size=3), max_size=3))
    logits = draw_from(
        st.lists(st.integers(-12, 12).map(lambda n: n / 4) | st.just(-np.inf), min_size=VOCAB, max_size=VOCAB)
    )
    return params, bad_words, logits, draw_from(tokens), draw_from(tokens), draw_from(st.integers(0, 2**64 - 1))


@given(st.lists(row(), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_every_row_of_any_batch_is_what_the_plain_oracle_says(bench, plain_oracle, rows):
    batch = bench(VOCAB, EOS)
    expected = []
    for i, (params, bad_words, logits, prompt, output, seed) in enumerate(rows):
        batch.start(i, prompt, output, seed, i, bad_words, **params)
        sampling = SamplingParams(**params)
        sampling.bad_words_token_ids = bad_words
        expected.append(plain_oracle(logits, sampling, seed, i, prompt, output, EOS))
    result = batch.sample({i: entry[2] for i, entry in enumerate(rows)})
    got = [None if i in result.failed else int(result.tokens[i]) for i in range(len(rows))]
    assert got == expected


@given(row(), st.integers(2, 6))
@settings(max_examples=100, deadline=None)
def test_state_kept_over_steps_equals_state_started_anew(bench, entry, steps):
    params, bad_words, logits, prompt, output, seed = entry
    kept = bench(VOCAB, EOS)
    kept.start(0, prompt, output, seed, 0, bad_words, **params)
    history = list(output)
    for _ in range(steps):
        fresh = bench(VOCAB, EOS)
        fresh.start(3, prompt, history, seed, 0, bad_words, **params)
        ours, theirs = kept.sample({0: logits}), fresh.sample({3: logits})
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.failed == theirs.failed
        if ours.failed:
            return
        history.append(int(ours.tokens[0]))


def params_of(count, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5):
    keys = np.full(count, stream_key(seed, 0), dtype=np.uint64)
    return DrawParams(
        np.full(count, temperature),
        np.full(count, top_k),
        np.full(count, top_p),
        np.full(count, min_p),
        uniforms(keys, np.arange(count, dtype=np.int32)),
    )


CHI_SQUARE_999 = {1: 10.8, 2: 13.8, 4: 18.5, 5: 20.5, 9: 27.9, 15: 37.7}
"""99.9 % quantiles by degrees of freedom."""


@pytest.mark.parametrize(
    "filters, kept",
    [
        ({}, 16),
        ({"temperature": 0.5}, 16),
        ({"temperature": 3.0}, 16),
        ({"top_k": 5}, 5),
        ({"top_p": 0.9}, None),
        ({"min_p": 0.2}, None),
        ({"top_k": 10, "top_p": 0.95, "min_p": 0.05, "temperature": 1.5}, None),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_draws_follow_the_filtered_softmax(filters, kept, seed):
    count = 20_000
    logits = np.linspace(0.0, 2.4, 16).astype(np.float32)[np.random.default_rng(3).permutation(16)]
    drawn = draw(torch.from_numpy(np.tile(logits, (count, 1))), params_of(count, seed=seed, **filters)).numpy()
    probs = np.exp(logits.astype(np.float64) / filters.get("temperature", 1.0))
    probs /= probs.sum()
    order = np.argsort(-probs)
    alive = probs >= filters.get("min_p", 0.0) * probs.max()
    if "top_k" in filters:
        alive &= probs >= probs[order[filters["top_k"] - 1]]
    left = np.where(alive, probs, 0) / probs[alive].sum()
    before = np.cumsum(left[order]) - left[order]
    alive[order[before >= filters.get("top_p", 1.0)]] = False
    left = np.where(alive, left, 0) / left[alive].sum()
    assert kept is None or alive.sum() == kept
    seen = np.bincount(drawn, minlength=16)
    assert seen[~alive].sum() == 0
    chi_square = float((((seen - count * left) ** 2)[alive] / (count * left[alive])).sum())
    nearest = min(degrees for degrees in CHI_SQUARE_999 if degrees >= alive.sum() - 1)
    assert chi_square < CHI_SQUARE_999[nearest], f"chi-square {chi_square:.1f} over {alive.sum()} tokens"


def test_uniforms_are_uniform_and_streams_do_not_overlap():
    positions = np.arange(20_000, dtype=np.int32)
    streams = []
    for seed, branch in [(0, 0), (0, 1), (1, 0), (2**64 - 1, 0), (-2, 0)]:
        numbers = uniforms(np.full(len(positions), stream_key(seed, branch), dtype=np.uint64), positions)
        assert 0 < numbers.min() <= numbers.max() < 1
        counts = np.bincount((numbers * 16).astype(int), minlength=16)
        assert ((counts - 1250) ** 2 / 1250).sum() < CHI_SQUARE_999[15]
        streams.append(numbers)
    assert np.abs(np.corrcoef(streams) - np.eye(len(streams))).max() < 0.03
    assert len(np.unique(np.concatenate(streams))) == len(streams) * len(positions)
    assert stream_key(-1, 3) == stream_key(2**64 - 1, 3), "seeds count modulo 2**64"


@pytest.mark.parametrize("vocab", [700, 5000])
@pytest.mark.parametrize("spread", [0.0, 0.02, 1.0, 6.0])
@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 300, "top_p": 0.7}, {"top_k": 40}, {"top_k": 600}])
def test_shortcuts_over_the_best_tokens_equal_the_whole_row(monkeypatch, vocab, spread, filters):
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(24, vocab, generator=generator) * spread).mul_(4).round_().div_(4)
    params = params_of(24, **filters)
    short = draw(logits, params)
    monkeypatch.setattr(draw_module, "NARROW", 0)
    monkeypatch.setattr(draw_module, "PREFIX", vocab)
    assert short.tolist() == draw(logits, params).tolist()


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.5, -np.inf]), min_size=9, max_size=9), min_size=1, max_size=4))
@settings(deadline=None)
def test_best_tokens_lists_equals_by_id(rows):
    logits = torch.tensor(rows)
    for count in range(10):
        want = [sorted(range(9), key=lambda t, r=r: (-r[t], t))[:count] for r in rows]
        assert best_tokens(logits, count).tolist() == want
