"""Every broken scheduler is caught by the test named here, and sched_fcfs passes all of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

LAWS, PRESSURE, GANGS = "test_scheduler.py::", "test_scheduler_pressure.py::", "test_scheduler_gangs.py::"
PRIORITY = "test_scheduler_priority.py::"

CAUGHT_BY = {
    "sched_lifo": PRESSURE + "test_nobody_starves_under_a_burst",
    "sched_one_too_many": LAWS + "test_scheduled_tokens_never_exceed_the_budget",
    "sched_victim_runs": LAWS + "test_a_victim_receives_no_slots",
    "sched_no_scratch": LAWS + "test_nothing_runs_that_the_scratch_did_not_accept",
    "sched_never_resumes": PRESSURE + "test_preempted_groups_come_back_under_a_stream_of_newcomers",
    "sched_no_cap": LAWS + "test_running_sequences_never_exceed_the_cap",
    "sched_oldest_leaves": LAWS + "test_the_oldest_is_not_evicted_for_a_younger_one",
    "sched_one_at_a_time": PRESSURE + "test_requests_that_all_fit_run_together",
    "sched_dawdles": LAWS + "test_something_runs_whenever_something_can",
    "sched_needless_evictions": PRESSURE + "test_nothing_is_evicted_while_everything_fits",
    "sched_overtakes": LAWS + "test_preempted_groups_come_back_before_newcomers",
    "sched_gang_cut": GANGS + "test_a_gang_decodes_all_its_branches_or_none",
    "sched_named_twice": LAWS + "test_no_group_is_named_twice",
    "sched_silent_decodes": PRESSURE + "test_streams_get_a_token_in_every_step_beside_a_long_prompt",
    "sched_chunk_return": PRESSURE + "test_a_returner_is_not_evicted_again_and_again",
    "sched_reorders": LAWS + "test_decide_leaves_the_view_alone",
    "sched_beyond_gap": LAWS + "test_a_run_computes_between_one_token_and_the_gap",
    "sched_lone_leaves": PRESSURE + "test_a_lone_group_is_never_preempted",
    "sched_no_resume": LAWS + "test_groups_are_taken_from_the_queue_they_are_in",
    "sched_second_first": LAWS + "test_newcomers_enter_in_the_order_they_came",
    "sched_deaf": PRIORITY + "test_the_most_urgent_enters_first_and_equals_as_they_came",
    "sched_never_displaces": PRIORITY + "test_the_less_urgent_leave_for_the_more_urgent",
    "sched_never_ages": PRIORITY + "test_the_less_urgent_do_not_starve_under_a_stream_of_urgent_ones",
    "sched_displaces_equals": PRIORITY + "test_nobody_leaves_for_an_equal",
}


def test_every_broken_scheduler_is_caught(harness) -> None:
    harness.assert_all_die("sched", "sched_mutants", CAUGHT_BY, healthy="sched_fcfs")
