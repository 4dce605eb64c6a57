"""Draws begun for an executor that tells the sampler later what the device found: the same draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_conformance.benches.sampler import VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires

pytestmark = layer("behaviour")

NUM_ROWS, STEPS = 6, 5
KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.5, "top_k": 12, "top_p": 0.8},
]


def bench_of(sampler, kinds) -> SamplerBench:
    bench = SamplerBench(sampler)
    for number in range(NUM_ROWS):
        bench.start(number, Row(params(**kinds[number % len(kinds)]), seed=number))
    return bench


def logits_of(step: int) -> torch.Tensor:
    return torch.stack([torch.from_numpy(spread(100 * step + number)) for number in range(NUM_ROWS)])


def begun(bench: SamplerBench, steps=STEPS, logits=logits_of):
    """Samples and device tokens of every step; each is told after the next was begun."""
    rows, found, waiting = np.arange(NUM_ROWS, dtype=np.int32), [], []
    for step in range(steps):
        positions = np.full(NUM_ROWS, 1 + step, dtype=np.int32)
        waiting.append(bench.sampler.begin(logits(step).to(bench.device), rows, positions))
        if len(waiting) == 2:
            found.append(finished(waiting.pop(0)))
    return [*found, finished(waiting.pop())]


def finished(drawing):
    told = None if drawing.told is None else drawing.told.cpu().numpy()
    return drawing.finish(told), None if drawing.tokens is None else drawing.tokens.cpu().numpy()


@pytest.mark.parametrize("kinds", [[kind] for kind in KINDS] + [KINDS], ids=str)
def test_draws_that_are_told_later_are_those_of_sample(sampler, kinds):
    bench = bench_of(sampler, kinds)
    expected = [bench.sample_tensor(range(NUM_ROWS), logits_of(step)).tokens.tolist() for step in range(STEPS)]
    for step, (samples, tokens) in enumerate(begun(bench_of(sampler, kinds))):
        assert samples.tokens.tolist() == expected[step], f"step {step} of {kinds}"
        assert not samples.failed
        if tokens is not None:
            assert tokens.tolist() == expected[step], f"step {step}: the device has other tokens than the host is told"


@requires("penalties")
def test_what_was_begun_is_counted_before_the_next_draw(sampler):
    """Greedy rows that are forbidden what they have said: the same logits give all tokens, best first."""
    kinds = [{"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 2.0}]
    best_first = torch.argsort(logits_of(0), dim=1, descending=True)
    found = begun(bench_of(sampler, kinds), 4, lambda _: logits_of(0))
    assert np.array([samples.tokens for samples, _ in found]).T.tolist() == best_first[:, :4].tolist()


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
def test_a_row_that_fails_is_told_of_and_has_a_token_of_the_vocabulary(sampler, kind):
    def spoiled(step):
        logits = logits_of(step)
        logits[1, 3] = torch.nan
        logits[4] = -torch.inf
        return logits

    for samples, tokens in begun(bench_of(sampler, [kind]), 2, spoiled):
        assert sorted(samples.failed) == [1, 4]
        assert tokens is None or all(0 <= token < VOCAB for token in tokens.tolist())
