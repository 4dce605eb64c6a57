"""Beams drawn from measured log-probabilities: between those that share one trunk and those that part at once."""

from __future__ import annotations

import numpy as np
import pytest

from paged_core.api.output import CompletionOutput, Logprob, RequestOutput
from paged_core.api.params import SamplingParams
from paged_core.bench.divergence import BeamStub, sorted_logprobs
from paged_core.bench.saving import prompts_saving
from paged_core.bench.stub import stub_engine, stub_facts


def saved(logprobs: list[list[float]], seed: int = 0, *, beams: bool = True) -> float:
    executor = BeamStub(np.array(logprobs, dtype=np.float32), seed)
    engine = stub_engine(stub_facts(500, 512, 64), executor)
    search = {"use_beam_search": True, "beam_width": 2, "temperature": 0} if beams else {}
    params = SamplingParams(n=2, max_tokens=80, ignore_eos=True, **search)
    share = prompts_saving(engine, [[1] * 32], [params]).share
    engine.check()
    return share


def test_beams_of_one_distribution_share_all_but_their_last_token() -> None:
    """The two best are always the children of the better beam, so no block is ever held twice."""
    assert saved([[-0.5, -1.0]]) == pytest.approx(0.5)


def test_beams_of_many_distributions_part_for_a_while() -> None:
    mixed = [[-0.01, -5.0], [-0.6, -0.8], [-0.2, -2.0]]
    shares = [saved(mixed, seed) for seed in range(6)]
    assert all(saved(mixed, beams=False) < share < 0.5 for share in shares)
    assert len(set(shares)) > 1
    assert saved(mixed, 3) == shares[3]


def test_log_probabilities_are_read_from_answers_best_first() -> None:
    position = {7: Logprob(-3.0, 2), 5: Logprob(-0.5, 1), 9: Logprob(-4.0, 3)}
    answer = CompletionOutput(0, "", [5], logprobs=[position, position])
    output = RequestOutput("a", None, [1], [answer], finished=True)
    assert sorted_logprobs([output], k=2).tolist() == [[-0.5, -3.0], [-0.5, -3.0]]
