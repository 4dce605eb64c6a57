"""Log-probabilities, of the logits as the model gave them, and candidates, after bias and penalties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_conformance.benches.sampler import EOS, VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.sampler import edited, log_softmax

pytestmark = layer("behaviour")

EXACT = {"rtol": 1e-4, "atol": 1e-4}


def check_top(top, i, values, token, count):
    """Entry `i` of `top` against log-probabilities [vocab] of distinct logits."""
    order = np.argsort(-values)
    np.testing.assert_allclose(top.chosen[i], values[token], **EXACT, err_msg=f"log-probability of token {token}")
    rank = int((order == token).nonzero()[0][0]) + 1
    assert top.rank[i] == rank, f"token {token} is number {rank} from the top, reported as {top.rank[i]}"
    assert top.token_ids[i].tolist() == order[:count].tolist(), (
        f"the {count} best are {order[:count].tolist()}, best first; listed {top.token_ids[i].tolist()}"
    )
    np.testing.assert_allclose(top.logprobs[i], values[order[:count]], **EXACT, err_msg=f"the {count} best")


@requires("logprobs")
@pytest.mark.parametrize("temperature", [0, 0.3, 4.0])
@pytest.mark.parametrize("count", [0, 1, 5, VOCAB])
def test_log_probabilities_are_those_of_the_raw_logits(sampler, temperature, count):
    """Cases M23 and M26: temperature and filters leave them alone; k = 0 lists nothing but the drawn token."""
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(temperature=temperature, top_k=8, logprobs=count), seed=4))
    for seed in range(6):
        logits = spread(seed)
        samples = bench.sample({0: logits})
        check_top(samples.logprobs[0], 0, log_softmax(logits), int(samples.tokens[0]), count)


@requires("logprobs", "logit_bias", "penalties")
def test_log_probabilities_are_taken_before_bias_and_penalties(sampler):
    logits = spread()
    bench = SamplerBench(sampler)
    values = {"logit_bias": {3: 50.0}, "presence_penalty": 2.0, "repetition_penalty": 1.7, "temperature": 0}
    bench.start(0, Row(params(logprobs=4, **values), output=[1, 2, 5]))
    samples = bench.sample({0: logits})
    assert samples.tokens[0] == 3
    check_top(samples.logprobs[0], 0, log_softmax(logits), 3, 4)


@requires("logprobs")
def test_only_rows_that_asked_get_log_probabilities_and_as_many_as_they_asked_for(sampler):
    bench = SamplerBench(sampler)
    wishes = {5: None, 1: 3, 8: 0, 2: None, 9: 7}
    for number, count in wishes.items():
        bench.start(number, Row(params(temperature=0, logprobs=count)))
    samples = bench.sample({number: spread(number) for number in wishes})
    asked = {draw for draw, count in enumerate(wishes.values()) if count is not None}
    assert set(samples.logprobs) == asked, f"draws {sorted(asked)} asked, {sorted(samples.logprobs)} got"
    for draw, (number, count) in enumerate(wishes.items()):
        if count is not None:
            check_top(samples.logprobs[draw], 0, log_softmax(spread(number)), int(samples.tokens[draw]), count)


@requires("logprobs")
def test_masked_tokens_leave_the_other_log_probabilities_sound(sampler):
    """Case M09."""
    logits = spread()
    logits[::2] = -np.inf
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(temperature=0, logprobs=20)))
    top = bench.sample({0: logits}).logprobs[0]
    alive = [i for i, token in enumerate(top.token_ids[0].tolist()) if token % 2]
    assert len(alive) == 16, f"16 tokens are not masked; listed {top.token_ids.tolist()}"
    wanted = log_softmax(logits)[top.token_ids[0][alive]]
    np.testing.assert_allclose(top.logprobs[0][alive], wanted, **EXACT)
    assert not np.isnan(top.logprobs).any(), "a log-probability is NaN"


@requires("logprobs")
@pytest.mark.parametrize("count", [0, 1, 6])
def test_prompt_log_probabilities_of_given_targets(sampler, count):
    logits = np.stack([spread(seed, step=0.2) for seed in range(9)])
    targets = np.arange(9, dtype=np.int32) * 3
    bench = SamplerBench(sampler)
    top = bench.sampler.logprobs(torch.from_numpy(logits.copy()).to(bench.device), targets, count)
    for i, target in enumerate(targets.tolist()):
        check_top(top, i, log_softmax(logits[i]), target, count)


@requires("candidates")
def test_candidates_are_the_best_tokens_after_all_edits(sampler):
    """Beam search reads them: masked tokens are left out, even when fewer remain than were asked for."""
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(temperature=0)))
    bench.start(1, Row(params(temperature=0, min_tokens=4), output=[9]))
    logits = spread()
    logits[EOS] = 8.0
    few = np.full(VOCAB, -np.inf, dtype=np.float32)
    few[[2, 3, 4]] = 1.0, 3.0, 2.0
    samples = bench.sample({1: logits, 0: few}, {1: 5, 0: 6})
    values = log_softmax(edited(logits, bench.rows[1].params, [0], [9], (EOS,)))
    top = samples.candidates[0]
    assert top.token_ids[0].tolist() == np.argsort(-values)[:5].tolist(), "end of sequence is barred by min_tokens"
    np.testing.assert_allclose(top.logprobs[0], np.sort(values)[::-1][:5], **EXACT)
    assert samples.candidates[1].token_ids[0].tolist() == [3, 4, 2], "three tokens are not masked; best first: 3, 4, 2"


@requires("candidates")
def test_only_draws_that_want_candidates_get_them(sampler):
    bench = SamplerBench(sampler)
    for number in range(3):
        bench.start(number, Row(params(temperature=0)))
    samples = bench.sample({n: spread(n) for n in range(3)}, {1: 4})
    assert set(samples.candidates) == {1}, f"only draw 1 wants candidates; {sorted(samples.candidates)} got some"
