"""Rows that cannot be sampled fail alone, with a reason; their neighbours never notice."""

from __future__ import annotations

import numpy as np
import pytest

from paged_conformance.benches.sampler import VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires

pytestmark = layer("behaviour")


def broken_logits(kind):
    logits = spread(1)
    if kind == "all NaN":
        logits[:] = np.nan
    elif kind == "all masked":
        logits[:] = -np.inf
    else:
        logits[{"first NaN": 0, "one NaN": 13, "last NaN": VOCAB - 1}[kind]] = np.nan
    return logits


def batch_of(sampler, temperature):
    """Five rows; the one in the middle will be broken. Random where draws can be repeated."""
    bench = SamplerBench(sampler)
    warm = temperature if sampler.has("seed") else 0
    for number in range(5):
        bench.start(number, Row(params(temperature=warm), seed=number))
    return bench


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("kind", ["all NaN", "one NaN", "first NaN", "last NaN", "all masked"])
def test_a_broken_row_fails_alone_with_a_reason(sampler, kind, temperature):
    good, bad = batch_of(sampler, temperature), batch_of(sampler, temperature)
    wanted = good.sample({n: spread(n) for n in (0, 1, 3, 4)}).tokens.tolist()
    samples = bad.sample({n: broken_logits(kind) if n == 2 else spread(n) for n in range(5)})
    assert set(samples.failed) == {2}, f"{kind} in draw 2 of 5; failed draws: {samples.failed}"
    assert samples.failed[2].strip(), "a failed row needs a reason"
    assert samples.tokens[2] == 0, f"a failed draw's token is 0, not {samples.tokens[2]}"
    tokens = np.delete(samples.tokens, 2).tolist()
    assert tokens == wanted, f"law 16: {kind} in one row changed its neighbours' tokens from {wanted} to {tokens}"


def test_every_row_of_a_batch_may_fail(sampler):
    bench = batch_of(sampler, 0)
    samples = bench.sample(dict.fromkeys(range(5), broken_logits("one NaN")))
    assert set(samples.failed) == set(range(5)), f"five rows of NaN; failed: {samples.failed}"
    assert bench.sample({n: spread(n) for n in range(5)}).failed == {}, "rows stayed broken after their logits healed"


@requires("allowed_token_ids")
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_row_whose_allowed_tokens_are_all_masked_fails_alone(sampler, temperature):
    bench = batch_of(sampler, temperature)
    bench.start(2, Row(params(temperature=temperature, allowed_token_ids=[4, 5]), seed=2))
    logits = spread()
    logits[[4, 5]] = -np.inf
    samples = bench.sample(dict.fromkeys(range(5), logits))
    assert set(samples.failed) == {2}, f"only row 2 has no token left; failed: {samples.failed}"


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_masked_tokens_are_never_drawn(sampler, temperature):
    """-inf comes from the model or a grammar and is final."""
    bench = batch_of(sampler, temperature)
    logits = np.full(VOCAB, -np.inf, dtype=np.float32)
    logits[[3, 17]] = 1.0, 1.1
    for _ in range(20):
        samples = bench.sample(dict.fromkeys(range(5), logits))
        assert not samples.failed, f"two tokens are left, yet rows failed: {samples.failed}"
        assert set(samples.tokens.tolist()) <= {3, 17}, f"drew {samples.tokens.tolist()}; only 3 and 17 are not masked"


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_an_infinite_logit_wins_or_fails_and_harms_nobody(sampler, temperature):
    good, bad = batch_of(sampler, temperature), batch_of(sampler, temperature)
    wanted = good.sample({n: spread(n) for n in (0, 1, 3, 4)}).tokens.tolist()
    logits = spread()
    logits[11] = np.inf
    samples = bad.sample({n: logits if n == 2 else spread(n) for n in range(5)})
    assert set(samples.failed) <= {2}, f"+inf in draw 2; failed: {samples.failed}"
    assert 2 in samples.failed or samples.tokens[2] == 11, f"the token with logit +inf is 11, drawn {samples.tokens[2]}"
    assert np.delete(samples.tokens, 2).tolist() == wanted, "law 16: +inf in one row changed its neighbours' tokens"


@requires("logprobs")
def test_a_failed_row_takes_nobodys_log_probabilities_along(sampler):
    bench = batch_of(sampler, 0)
    for number in range(5):
        bench.start(number, Row(params(temperature=0, logprobs=2)))
    samples = bench.sample({n: broken_logits("one NaN") if n == 2 else spread(n) for n in range(5)})
    assert {0, 1, 3, 4} <= set(samples.logprobs), f"rows that did not fail lost theirs: {sorted(samples.logprobs)}"
    for draw in (0, 1, 3, 4):
        assert np.isfinite(samples.logprobs[draw].chosen).all()
