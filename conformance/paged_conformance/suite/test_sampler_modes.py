"""What log-probabilities report: raw or processed, as log-probabilities or logits; the best tokens or listed ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_conformance.benches.sampler import EOS, VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.sampler import distribution, edited, log_softmax

pytestmark = layer("behaviour")

MODES = ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
MASKED = -9999.0
EXACT = {"rtol": 1e-4, "atol": 1e-4}
EDITS = {"presence_penalty": 1.5, "logit_bias": {3: 1.0, 4: -1.0}, "allowed_token_ids": list(range(24))}
FILTERS = {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.01}


def wanted(mode, logits, row):
    """All values [vocab] that this mode may report, masked tokens at -9999."""
    values = edited(logits, row.params, row.prompt, row.output, (EOS,))
    if mode.startswith("raw"):
        return log_softmax(logits) if mode == "raw_logprobs" else logits
    with np.errstate(divide="ignore"):
        if row.params.greedy:
            chances, values = np.exp(values - values.max()), values
            chances /= chances.sum()
        else:
            chances, values = distribution(values, row.params), values / row.params.temperature
        found = np.log(chances) if mode == "processed_logprobs" else np.where(chances > 0, values, -np.inf)
    return np.maximum(found, MASKED)


@requires("logprobs_modes", "logprobs", "penalties", "logit_bias", "allowed_token_ids", "min_p", "seed")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filters", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.7}, FILTERS], ids=str)
def test_each_mode_reports_what_its_name_says(sampler, mode, filters):
    for seed in range(4):
        logits = spread(seed, step=0.2)
        bench = SamplerBench(sampler, mode=mode)
        row = Row(params(logprobs=VOCAB, **EDITS, **filters), seed=seed, prompt=[1, 2], output=[3, 5])
        values = wanted(mode, logits, row)
        bench.start(0, row)
        samples = bench.sample({0: logits})
        token, top = int(samples.tokens[0]), samples.logprobs[0]
        listed = np.full(VOCAB, MASKED)
        listed[top.token_ids[0]] = top.logprobs[0]
        np.testing.assert_allclose(listed, values, **EXACT, err_msg=f"{mode}, {filters}: all values")
        np.testing.assert_allclose(top.chosen[0], values[token], **EXACT, err_msg=f"{mode}: token {token}")
        assert top.rank[0] == 1 + (values > values[token] + 1e-6).sum(), f"{mode}: rank of {token} is {top.rank[0]}"
        assert top.logprobs[0].tolist() == sorted(top.logprobs[0].tolist(), reverse=True), "best first"


@requires("logprobs_modes", "logprobs", "seed")
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_changes_no_token_and_no_row_that_asks_for_nothing(sampler, mode):
    drawn = []
    for used in ("raw_logprobs", mode):
        bench = SamplerBench(sampler, mode=used)
        for number in range(6):
            asked = number % 2 or None
            bench.start(number, Row(params(temperature=number % 3, top_k=9, logprobs=asked), seed=number))
        samples = bench.sample({number: spread(number) for number in range(6)})
        assert set(samples.logprobs) == {1, 3, 5}
        drawn.append(samples.tokens.tolist())
    assert drawn[0] == drawn[1], f"{mode} drew {drawn[1]}, raw_logprobs {drawn[0]}"


@requires("logprobs_modes", "logprobs")
@pytest.mark.parametrize("mode", MODES)
def test_prompts_have_log_probabilities_or_logits_and_no_processing(sampler, mode):
    logits = np.stack([spread(seed, step=0.2) for seed in range(5)])
    targets = np.arange(5, dtype=np.int32) * 4
    bench = SamplerBench(sampler, mode=mode)
    top = bench.sampler.logprobs(torch.from_numpy(logits.copy()).to(bench.device), targets, 2)
    values = log_softmax(logits) if mode.endswith("logprobs") else logits
    np.testing.assert_allclose(top.chosen, values[np.arange(5), targets], **EXACT)
    np.testing.assert_allclose(top.logprobs, -np.sort(-values, axis=-1)[:, :2], **EXACT)


@requires("logprobs_modes", "candidates")
@pytest.mark.parametrize("mode", MODES)
def test_candidates_are_log_probabilities_whatever_the_mode(sampler, mode):
    bench = SamplerBench(sampler, mode=mode)
    bench.start(0, Row(params(temperature=0)))
    top = bench.sample({0: spread()}, {0: 5}).candidates[0]
    np.testing.assert_allclose(top.logprobs[0], np.sort(log_softmax(spread()))[::-1][:5], **EXACT)


@requires("logprob_token_ids", "logprobs")
def test_listed_tokens_are_reported_instead_of_the_best(sampler):
    """Beside rows that ask for the best tokens or for another list, in the order of the list."""
    bench = SamplerBench(sampler)
    lists = {0: [30, 2, 17], 1: None, 2: [30, 2, 17], 3: [5], 4: [30, 2, 18]}
    for number, ids in lists.items():
        bench.start(number, Row(params(temperature=0, logprobs=3, logprob_token_ids=ids)))
    samples = bench.sample({number: spread(number) for number in lists})
    for number, ids in lists.items():
        values, top = log_softmax(spread(number)), samples.logprobs[number]
        listed = ids or np.argsort(-values)[:3].tolist()
        assert top.token_ids[0].tolist() == listed, f"row {number} lists {top.token_ids[0].tolist()}, not {listed}"
        np.testing.assert_allclose(top.logprobs[0], values[listed], **EXACT)
        np.testing.assert_allclose(top.chosen[0], values.max(), **EXACT)
        assert top.rank[0] == 1
