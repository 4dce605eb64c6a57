"""Answers: noise, but of the request's own, of the right tokens and of the documented distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paged_exec_sim.answers import Answers
from paged_exec_sim.noise import log_probabilities, words_at

from paged_core.api.batch import RowStart, StepPlan
from paged_core.api.params import SamplingParams

PROMPT = np.arange(5, dtype=np.int32)
NONE = np.zeros(0, dtype=np.int32)


def start(row: int, seed: int = 7, branch: int = 0, **params: object) -> RowStart:
    return RowStart(row, SamplingParams(**params), seed, branch, PROMPT, NONE)


def draw(rows: list[int], positions: list[int], starts: list[RowStart]) -> StepPlan:
    """A plan whose sequences all draw."""
    ints = [np.array(values, dtype=np.int32) for values in (rows, positions, range(len(rows) + 1))]
    return StepPlan(0, ints[0], ints[1], ints[2], ints[0], ints[1], ints[0], ints[0], ints[1], NONE, started=starts)


def tokens(answers: Answers, row: int, begin: RowStart, count: int = 200) -> list[int]:
    """What a row draws at `count` positions."""
    found = [answers.to(draw([row], [5], [begin]), 0.0).tokens[0, 0]]
    found += [answers.to(draw([row], [5 + i], []), 0.0).tokens[0, 0] for i in range(1, count)]
    return [int(token) for token in found]


def test_draws_belong_to_seed_and_branch_not_to_the_row() -> None:
    answers = Answers(8, 1000, ())
    one = tokens(answers, 0, start(0, seed=7))
    assert tokens(answers, 3, start(3, seed=7)) == one
    assert tokens(answers, 0, start(0, seed=8)) != one
    assert tokens(answers, 0, start(0, seed=7, branch=1)) != one
    assert len(set(one)) > 100


def test_end_tokens_are_passed_over_and_all_others_come() -> None:
    """Of four tokens, 0 and 2 end a sequence."""
    assert set(tokens(Answers(2, 4, (2, 0)), 1, start(1))) == {1, 3}


@pytest.mark.parametrize("name", ["allowed_token_ids", "logits_processors", "structured_outputs"])
def test_a_row_that_asks_for_logits_fails_until_it_is_somebody_elses(name: str) -> None:
    answers = Answers(2, 100, ())
    params = SamplingParams()
    setattr(params, name, [5])
    asks = start(1)._replace(params=params)
    result = answers.to(draw([0, 1], [5, 5], [start(0), asks]), 0.0)
    assert set(result.failed) == {1}
    assert name in result.failed[1]
    assert result.num_tokens.tolist() == [1, 0]
    plan = replace(draw([0, 1], [6, 5], [start(1)]), ended=[1])
    assert not answers.to(plan, 0.0).failed


def test_log_probabilities_are_as_uneven_as_those_of_real_answers() -> None:
    """The best token has nearly the quantiles that were measured (0.21, 0.62, 1.00), and all together have 1."""
    words = words_at(np.arange(4000, dtype=np.uint64), np.zeros(4000, dtype=np.int32))
    best = np.exp(log_probabilities(words, 1, 50_000)[:, 0])
    assert np.quantile(best, [0.1, 0.5, 0.9]) == pytest.approx([0.21, 0.7, 1.0], abs=0.12)
    whole = np.exp(log_probabilities(words[:50], 2000, 2000).astype(np.float64)).sum(axis=1)
    assert whole == pytest.approx(np.ones(50), abs=2e-3)
