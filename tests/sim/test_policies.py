"""What each policy is known for, as its authors claim it, seen in simulated runs of the real engine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from paged_core.sim.measures import Window, measure
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.workload.arrivals import arrival_times
from paged_core.workload.lengths import Lengths, alpaca, arrivals_of
from paged_core.workload.traces import read_trace, scaled_lengths, window

NUM_BLOCKS = 120
"""1,920 slots: 25 to 40 of the requests below, of 78 tokens on average."""


def short_chats(rate, count=240):
    """Instructions with short answers, Poisson arrivals; an infinite rate lets all come at once."""
    random = np.random.default_rng(5)
    return arrivals_of(alpaca(count, random), arrival_times(count, rate, 1.0, random))


@cache
def served(sched, rate=float("inf"), claimed_tokens=None, **sizes):
    """The outcome, and its measures from the first arrival on."""
    system = System(sched=sched, cost="roofline", **{"num_blocks": NUM_BLOCKS, "max_model_len": 1024, **sizes})
    outcome = simulate(system, short_chats(rate), claimed_tokens=claimed_tokens)
    found = measure(outcome, window=Window.of(outcome, warmup=0.0))
    assert found.all_finished
    return outcome, found


def test_no_evict_lets_fewer_in_when_answers_are_announced_longer_than_they_are():
    _, truthful = served("no_evict")
    outcome, careful = served("no_evict", claimed_tokens=400)
    assert careful.batch < 0.6 * truthful.batch
    assert sum(outcome.preemptions.values()) == 0


def test_max_utilization_serves_more_than_no_evict_when_answers_are_announced_longer_than_they_are():
    careful, _ = served("no_evict", claimed_tokens=400)
    bold, found = served("max_utilization", claimed_tokens=400)
    assert bold.end_s < 0.7 * careful.end_s
    assert found.preemptions == sum(bold.preemptions.values()) > 20, "and the pauses are counted"
    assert bold.end_s == served("max_utilization")[0].end_s, "it does not look at what is announced"


def test_both_do_the_same_where_the_true_lengths_fit():
    """Announced truthfully, at a load whose promises fit the pool at any time; overestimates alone make one wait."""
    careful, theirs = served("no_evict", rate=2.0)
    bold, ours = served("max_utilization", rate=2.0)
    assert theirs == ours
    np.testing.assert_array_equal(careful.requests.finish_s, bold.requests.finish_s)
    _, waits = served("no_evict", rate=2.0, claimed_tokens=1000)
    assert waits.ttft.p99 > 2 * theirs.ttft.p99


def test_promises_cost_part_of_the_batch_even_when_they_are_true():
    """What is promised is not used yet: the pool is fuller without promises, at the price of pauses."""
    _, careful = served("no_evict")
    _, bold = served("max_utilization")
    assert careful.preemptions == 0 < bold.preemptions
    assert bold.memory.token > 1.15 * careful.memory.token


def test_peak_runs_more_than_the_worst_case_with_a_fraction_of_the_preemptions():
    worst, careful = served("no_evict", claimed_tokens=400)
    _, bold = served("max_utilization", claimed_tokens=400)
    outcome, found = served("peak", claimed_tokens=400)
    assert found.batch > 1.5 * careful.batch
    assert outcome.end_s < 0.75 * worst.end_s
    assert found.preemptions < 0.25 * bold.preemptions


def test_at_overload_peak_spares_streams_the_pauses_of_the_bold_at_nearly_their_throughput():
    bold, theirs = served("max_utilization", rate=20.0, claimed_tokens=400)
    outcome, ours = served("peak", rate=20.0, claimed_tokens=400)
    careful, _ = served("no_evict", rate=20.0, claimed_tokens=400)
    assert ours.tpot.p99 < 0.4 * theirs.tpot.p99
    assert bold.end_s < outcome.end_s < 1.1 * bold.end_s < 0.4 * careful.end_s


def test_peak_reckons_with_announced_ends_when_its_past_says_nothing():
    """As long as nobody has ended the two decide alike."""
    outcome, _ = served("peak", claimed_tokens=400)
    careful, _ = served("no_evict", claimed_tokens=400)
    first_end = np.nanmin(outcome.requests.finish_s)
    assert first_end == np.nanmin(careful.requests.finish_s)
    for run in (outcome, careful):
        early = run.steps.begin_s < first_end
        assert run.steps.num_groups[early].max() == pytest.approx(careful.steps.num_groups[0], abs=1)


def test_equal_priorities_are_served_as_they_come():
    ours, theirs = served("priority")[0], served("fcfs")[0]
    np.testing.assert_array_equal(ours.requests.finish_s, theirs.requests.finish_s)


def long_prompts(count=60, rate=2.4):
    """FastGen's load: prompts of about 2,600 tokens, answers of about 60."""
    random = np.random.default_rng(7)
    prompts = np.clip(random.normal(2600, 780, count), 200, 6000)
    outputs = np.clip(random.normal(60, 18, count), 2, 200)
    pairs = np.stack([prompts, outputs], axis=1).astype(np.int64)
    return arrivals_of(Lengths("long prompts", pairs), arrival_times(count, rate, 1.0, random))


def test_chunks_beside_decodes_keep_streams_moving_that_prompts_first_stop():
    """Sarathi's and FastGen's claim: the P99 between two tokens is that of a step, not that of others' prompts."""
    base = {"model": "llama-3-8b", "device": "a100-80gb", "cost": "roofline"}
    chunked = simulate(System(sched="fcfs", token_budget=512, **base), long_prompts())
    whole = simulate(System(sched="prefill_first", chunked_prefill=False, token_budget=8192, **base), long_prompts())
    ours, theirs = measure(chunked), measure(whole)
    assert ours.itl.p99 < 0.35 * theirs.itl.p99
    assert ours.requests_per_s > 0.95 * theirs.requests_per_s


def test_steps_of_chunks_are_of_one_size_at_saturation():
    """Dynamic SplitFuse: while anybody waits, every step is filled to the budget."""
    system = System(
        model="llama-3-8b", device="a100-80gb", cost="roofline", sched="fcfs", token_budget=512, max_num_seqs=64
    )
    steps = simulate(system, long_prompts(rate=float("inf"))).steps
    busy = steps.num_waiting > 0
    tokens = (steps.prefill_tokens + steps.decode_tokens)[busy]
    assert busy.sum() > 100
    assert tokens.std() / tokens.mean() < 0.01
    assert tokens.max() == 512


@pytest.mark.parametrize("name", ["azure2023_code.csv", "azure2023_conv.csv", "mooncake_conversation.jsonl"])
def test_no_evict_preempts_nobody_on_any_trace(shared, name):
    rows = scaled_lengths(window(read_trace(shared / "data" / "traces" / name), 0, 40), 1 / 16)
    fits = [row for row in rows if row.prompt_tokens + row.output_tokens < 1000]
    system = System(sched="no_evict", cost="roofline", num_blocks=80, max_model_len=1024, prefix_cache=True)
    for claimed_tokens in (None, 60):
        outcome = simulate(system, fits, claimed_tokens=claimed_tokens)
        assert outcome.preemptions == {"swap": 0, "recompute": 0}
        assert outcome.requests.finished.all()
