"""Schedulers: the laws of `paged_core.api.scheduler`, judged on every decision of long random traffic with aborts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.benches.traffic import Ask, Play, play, random_aborts, random_asks, shape_for, undisturbed
from paged_conformance.marks import layer, requires

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")

NUM_STEPS, NUM_QUICK_STEPS = 10_000, 1_000
"""Steps of the long trace."""


@pytest.fixture(scope="module")
def traffic(sched: Candidate) -> tuple[Play, list[Ask]]:
    """One long run in which pool, budget and cap are all short: 96 slots, five sequences of up to 54 tokens."""
    asks = random_asks(11, NUM_QUICK_STEPS if sched.quick else NUM_STEPS, 0.24)
    shape = shape_for(
        sched.plugins,
        sched=sched.name,
        num_blocks=24,
        num_host_blocks=16,
        max_model_len=64,
        max_num_seqs=5,
        token_budget=16 if sched.has("chunked_prefill") else 64,
        chunked_prefill=sched.has("chunked_prefill"),
    )
    return play(sched.plugins, shape, asks, aborts=random_aborts(12, asks, 0.1)), asks


@pytest.fixture(scope="module")
def busy(traffic: tuple[Play, list[Ask]]) -> Play:
    """The run alone."""
    return traffic[0]


def test_scheduled_tokens_never_exceed_the_budget(sched: Candidate, busy: Play) -> None:
    busy.assert_law("budget", "law 6, the token budget")


def test_running_sequences_never_exceed_the_cap(sched: Candidate, busy: Play) -> None:
    busy.assert_law("cap", "law 6, the sequence cap")


def test_no_group_is_named_twice(sched: Candidate, busy: Play) -> None:
    busy.assert_law("once", "law 7, once")


def test_groups_are_taken_from_the_queue_they_are_in(sched: Candidate, busy: Play) -> None:
    busy.assert_law("queue", "law 7, queues")


def test_a_victim_receives_no_slots(sched: Candidate, busy: Play) -> None:
    busy.assert_law("victims", "law 11")


def test_a_run_computes_between_one_token_and_the_gap(sched: Candidate, busy: Play) -> None:
    busy.assert_law("gap", "the gap rule")


def test_nothing_runs_that_the_scratch_did_not_accept(sched: Candidate, busy: Play) -> None:
    busy.assert_law("room", "the scratch rule")


def test_something_runs_whenever_something_can(sched: Candidate, busy: Play) -> None:
    busy.assert_law("progress", "the progress law")


def test_decide_leaves_the_view_alone(sched: Candidate, busy: Play) -> None:
    busy.assert_law("untouched", "decide is pure but for the scratch and the scheduler's notes")


@requires("fcfs")
def test_preempted_groups_come_back_before_newcomers(sched: Candidate, busy: Play) -> None:
    busy.assert_law("returners_first", "law 12")


@requires("fcfs")
def test_newcomers_enter_in_the_order_they_came(sched: Candidate, busy: Play) -> None:
    busy.assert_law("in_order", "fcfs")


@requires("fcfs")
def test_the_oldest_is_not_evicted_for_a_younger_one(sched: Candidate, busy: Play) -> None:
    busy.assert_law("newest_leaves", "fcfs, case P07")


def test_every_request_of_random_traffic_ends_with_its_undisturbed_tokens(
    sched: Candidate, traffic: tuple[Play, list[Ask]]
) -> None:
    run, asks = traffic
    run.assert_sound()
    expected = undisturbed(sched.plugins, asks)
    lost = [ask for ask in asks if ask.id not in run.aborted and run.tokens.get(ask.id) != expected[ask.id]]
    assert not lost, (
        f"law 15: {len(lost)} of {len(asks)} requests differ; the first is {lost[0]}: "
        f"{run.tokens.get(lost[0].id)} instead of {expected[lost[0].id]}"
    )


def test_forget_is_called_once_for_every_group_and_harms_nobody(
    sched: Candidate, traffic: tuple[Play, list[Ask]]
) -> None:
    run, asks = traffic
    run.assert_sound()
    assert sorted(run.recorder.forgotten) == sorted(ask.id for ask in asks)
