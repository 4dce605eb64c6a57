"""Simulated executors: what they answer means nothing, so its laws are that it comes, ends in time and comes again.

An executor that runs a model meets the refusal of the capability in their place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paged_conformance.benches.executor import ExecutorBench, Moves, Running, tiny_need
from paged_conformance.benches.sampler import params
from paged_conformance.marks import layer, requires
from paged_core.testing.tiny import write_tiny_llama

pytestmark = [layer("behaviour"), requires("simulated")]


@pytest.fixture(scope="module")
def need(executor, tmp_path_factory):
    """A need whose model is nowhere: a simulation reads no weights."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("simulated") / "tiny")
    return replace(tiny_need(executor, folder), model="not-here")


@pytest.fixture
def benches(executor, need):
    """Starts executors; they are closed afterwards."""
    opened = []

    def start():
        opened.append(ExecutorBench(executor, need))
        return opened[-1]

    yield start
    for bench in opened:
        bench.executor.close()


def sequence(row, length, **values):
    """A sequence with a prompt and a seed of its own."""
    wanted = params(**{"temperature": 1.0, **values})
    return Running(row, [(3 * row + i) % 250 for i in range(length)], wanted, length, seed=row + 1)


def run(bench, *, beside=True):
    """A few steps of one sequence, perhaps among others; its output and the seconds of every step."""
    one, others = sequence(0, 20), [sequence(1, 3), sequence(2, 40)] if beside else []
    seconds = []
    for _ in range(6):
        work = {each: len(each.tokens) - each.num_computed for each in (one, *others)}
        seconds.append(bench.step(work).elapsed_s)
    return one.output, seconds


def test_equal_plans_get_equal_answers_and_take_equally_long(benches):
    assert run(benches()) == run(benches()), "two simulations of the same steps differ"


def test_draws_depend_on_no_neighbour(benches):
    assert run(benches())[0] == run(benches(), beside=False)[0]


def test_an_answer_ends_at_its_true_length_and_not_before(benches, need):
    """As long as the request says it is, whatever more it allows; without a true length no end token is drawn."""
    bench, length = benches(), 9
    told, free = sequence(0, 5), sequence(1, 5)
    plan = bench.plan({told: 5, free: 5})
    plan.started = [start._replace(true_output_len=length if start.row == told.row else None) for start in plan.started]
    bench.commit({told: 5, free: 5}, plan, bench.executor.collect(bench.executor.submit(plan)))
    for _ in range(length - 1):
        bench.step({told: 1, free: 1})
    ends = [token in need.eos_token_ids for token in told.output]
    assert ends == [False] * (length - 1) + [True], f"end tokens came at {np.flatnonzero(ends).tolist()}"
    assert not set(free.output) & set(need.eos_token_ids), "an end token without a true length"


def test_a_step_takes_time_on_its_own_measure(benches):
    _, seconds = run(benches())
    assert all(np.isfinite(seconds)), seconds
    assert min(seconds) > 0, "a step that computes takes time"


def test_more_work_takes_no_less_time(benches):
    """More of a prompt; more decodes; the same decodes with blocks to move."""
    few, many = (benches().step({sequence(0, length): length}).elapsed_s for length in (8, 100))
    assert few <= many
    bench = benches()
    sequences = [sequence(row, 4) for row in range(4)]
    bench.decode(sequences, 1)
    one = bench.step({sequences[0]: 1}).elapsed_s
    four = bench.step(dict.fromkeys(sequences, 1)).elapsed_s
    assert one <= four
    again = bench.step(dict.fromkeys(sequences, 1)).elapsed_s
    moved = Moves(swap_out=[(9, 0), (10, 1)], copies=[(11, 12)])
    assert bench.step(dict.fromkeys(sequences, 1), moved).elapsed_s > again


def test_beams_find_candidates_best_first(benches, need):
    """As many as are wanted, all different, no end token before the true length; the draw that reaches it ends."""
    bench, beam = benches(), sequence(0, 5, temperature=0.0)
    wanted, length = 5, 3
    for step in range(length):
        work = {beam: len(beam.tokens) - beam.num_computed}
        plan = bench.plan(work)
        plan.started = [start._replace(true_output_len=length) for start in plan.started]
        plan.num_candidates = np.full(1, wanted, dtype=np.int32)
        result = bench.executor.collect(bench.executor.submit(plan))
        top = result.candidates[0]
        tokens, logprobs = top.token_ids[0].tolist(), top.logprobs[0]
        assert len(set(tokens)) == wanted, f"{wanted} candidates were wanted: {tokens}"
        assert all(0 <= token < need.spec.vocab_size for token in tokens)
        assert (np.diff(logprobs) <= 0).all(), f"not best first: {logprobs}"
        assert np.exp(logprobs.astype(np.float64)).sum() <= 1 + 1e-4, "probabilities add up to more than one"
        ends = [token in need.eos_token_ids for token in tokens]
        assert any(ends) == (step == length - 1), f"end tokens among the candidates of output token {step + 1}"
        assert ends[0] == any(ends), "where a beam ends, ending is what is best"
        bench.commit(work, plan, result)


def test_log_probabilities_come_with_the_draws_that_ask(benches):
    bench = benches()
    asks, silent = sequence(0, 5, logprobs=3), sequence(1, 5)
    plan = bench.plan({asks: 5, silent: 5})
    result = bench.executor.collect(bench.executor.submit(plan))
    (draw,) = np.flatnonzero(plan.sample_rows == asks.row).tolist()
    assert set(result.logprobs) == {draw}
    top = result.logprobs[draw]
    assert top.token_ids.shape == top.logprobs.shape == (1, 3)
    assert top.rank[0] >= 1
    if top.rank[0] <= 3:
        assert top.token_ids[0, top.rank[0] - 1] == result.tokens[draw, 0]
        assert top.logprobs[0, top.rank[0] - 1] == top.chosen[0]


def test_what_needs_logits_fails_with_a_reason_and_alone(benches):
    bench = benches()
    bound, free = sequence(0, 5, allowed_token_ids=[7, 8]), sequence(1, 5)
    result = bench.step({bound: 5, free: 5})
    assert set(result.failed) == {bound.row}
    assert result.failed[bound.row].strip()
    assert len(free.output) == 1
    assert not bound.output
