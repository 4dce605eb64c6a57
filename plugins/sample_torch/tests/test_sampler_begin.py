"""Draws that are begun, and told to the host later, are those of `sample`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_sample_torch import draw as draw_module
from paged_sample_torch.draw import DrawParams, draw, draw_ahead
from paged_sample_torch.sampler import TorchSampler

from paged_core.api.batch import RowStart
from paged_core.api.params import SamplingParams
from paged_core.api.sampler import SamplerNeed

VOCAB = 40


def ints(values) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def sampler_of(*params: SamplingParams) -> TorchSampler:
    sampler = TorchSampler(SamplerNeed("cpu", VOCAB, 16))
    for row, wanted in enumerate(params):
        sampler.start(RowStart(row, wanted, 11, row, ints([1, 2]), ints([])))
    return sampler


@st.composite
def draws(draw_from):
    """Quarters with repetitions, so that ties at a cut are common; parameters of one row each."""
    rows = draw_from(st.integers(1, 6))
    logits = draw_from(st.lists(st.integers(-9, 9), min_size=rows * VOCAB, max_size=rows * VOCAB))
    pick = lambda values: np.array([draw_from(st.sampled_from(values)) for _ in range(rows)])  # noqa: E731
    params = DrawParams(
        temperature=pick([0.3, 1.0, 2.5]),
        top_k=pick([0, 0, 1, 3, 7, VOCAB - 1]),
        top_p=pick([1.0, 0.05, 0.5, 0.9, 0.999]),
        min_p=pick([0.0, 0.0, 0.1]),
        uniform=pick([1e-9, 0.2, 0.5, 0.77, 1 - 1e-9]),
    )
    return torch.tensor(logits).view(rows, VOCAB) / 4, params


@given(draws(), st.sampled_from([2, 5, 512]), st.sampled_from([1, 4]))
@settings(max_examples=300)
def test_a_draw_that_asks_nothing_of_the_device_is_the_same_draw(entry, narrow, prefix):
    logits, params = entry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw_module, "NARROW", narrow)
        patch.setattr(draw_module, "PREFIX", prefix)
        assert draw_ahead(logits, params).tolist() == draw(logits, params).tolist()


GREEDY, RANDOM = SamplingParams(temperature=0), SamplingParams(temperature=1.0, top_p=0.8, top_k=5)


def test_begun_draws_are_told_later():
    sampler = sampler_of(GREEDY, RANDOM, RANDOM, GREEDY)
    logits, rows = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1)), ints([3, 1, 2, 0])
    before = logits.clone()
    drawing = sampler.begin(logits, rows, ints([2, 2, 2, 2]))
    assert torch.equal(logits, before)
    samples = drawing.finish(drawing.told.numpy())
    assert drawing.tokens.tolist() == samples.tokens.tolist()
    assert samples.tokens.tolist() == sampler.sample(logits, rows, ints([2, 2, 2, 2])).tokens.tolist()
    assert samples.failed == {}


def test_a_row_that_fails_is_told_later_and_its_token_is_one_of_the_vocabulary():
    sampler = sampler_of(GREEDY, RANDOM, GREEDY, RANDOM)
    logits = torch.zeros(4, VOCAB)
    logits[0, 7], logits[1, 8] = torch.nan, torch.nan
    logits[2:] = -torch.inf
    drawing = sampler.begin(logits, ints([0, 1, 2, 3]), ints([2, 2, 2, 2]))
    assert all(0 <= token < VOCAB for token in drawing.tokens.tolist())
    samples = drawing.finish(drawing.told.numpy())
    assert samples.failed == sampler.sample(logits, ints([0, 1, 2, 3]), ints([2, 2, 2, 2])).failed
    assert samples.tokens.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, repetition_penalty=2.0),
        SamplingParams(temperature=0, logprobs=1),
        SamplingParams(temperature=0, min_tokens=3),
        SamplingParams(temperature=0, logit_bias={3: 5.0}),
    ],
)
def test_rows_that_need_the_hosts_eye_are_done_at_once_and_counted(params):
    begun, sampled = sampler_of(GREEDY, params), sampler_of(GREEDY, params)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2))
    for position in range(2, 6):
        drawing = begun.begin(logits, ints([0, 1]), ints([position] * 2))
        assert drawing.tokens is None
        ours, theirs = drawing.finish(None), sampled.sample(logits, ints([0, 1]), ints([position] * 2))
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs.keys() == theirs.logprobs.keys()


def test_candidates_are_done_at_once():
    drawing = sampler_of(GREEDY).begin(torch.randn(1, VOCAB), ints([0]), ints([2]), ints([4]))
    assert drawing.tokens is None
    assert len(drawing.finish(None).candidates[0].token_ids[0]) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_what_the_cpu_draws():
    params = [SamplingParams(temperature=t, top_p=p, top_k=k) for t in (0.5, 1.5) for p in (0.3, 1.0) for k in (0, 9)]
    rows, positions = ints(range(len(params))), ints([2] * len(params))
    logits = torch.randn(len(params), VOCAB, generator=torch.Generator().manual_seed(4))
    there = sampler_of(*params).begin(logits.cuda(), rows, positions)
    samples = there.finish(there.told.cpu().numpy())
    assert there.tokens.tolist() == samples.tokens.tolist()
    assert samples.tokens.tolist() == sampler_of(*params).sample(logits, rows, positions).tokens.tolist()
