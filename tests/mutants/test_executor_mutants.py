"""Every broken executor is caught by the test named here, and exec_local passes all of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

STEPS, MOVES, FLIGHT = "test_executor.py::", "test_executor_moves.py::", "test_executor_flight.py::"
RANKS = "test_executor_parallel.py::"

CAUGHT_BY = {
    "exec_late_copies": MOVES + "test_a_copy_comes_before_this_steps_writes",
    "exec_moves_need_tokens": MOVES + "test_swaps_happen_in_steps_that_compute_nothing",
    "exec_swap_in_first": MOVES + "test_swap_outs_come_before_swap_ins",
    "exec_early_copies": MOVES + "test_a_swapped_in_block_may_be_copied_in_the_same_step",
    "exec_changes_plan": STEPS + "test_a_plan_is_not_changed_by_running_it",
    "exec_closes_once": STEPS + "test_closing_twice_is_harmless",
    "exec_dies_confused": STEPS + "test_a_step_after_close_is_refused_as_a_dead_engine",
    "exec_nan_kills": STEPS + "test_a_row_of_nan_fails_alone",
    "exec_one_layer": STEPS + "test_capacity_needs_no_model_files_and_grows_with_memory",
    "exec_loads_early": STEPS + "test_capacity_needs_no_model_files_and_grows_with_memory",
    "exec_mixed_tickets": STEPS + "test_tickets_are_collected_in_the_order_of_submission",
    "exec_prompt_shifted": STEPS + "test_prompt_log_probabilities_are_those_of_the_reference",
    "exec_rows_linger": STEPS + "test_a_table_row_used_again_knows_nothing_of_its_predecessor",
    "exec_broken_pipe": STEPS + "test_the_death_of_a_worker_is_told_within_a_bound",
    "exec_leaves_worker": STEPS + "test_closing_leaves_no_process",
    "exec_all_heads": RANKS + "test_each_rank_keeps_its_kv_heads_and_no_more",
    "exec_any_size": RANKS + "test_sizes_that_cut_the_heads_evenly_are_taken_and_others_refused_with_those",
}


def test_every_broken_executor_is_caught(harness) -> None:
    harness.assert_all_die("executor", "executor_mutants", CAUGHT_BY, healthy="exec_local")


CAUGHT_IN_FLIGHT = {
    "exec_forgets_sources": FLIGHT + "test_greedy_tokens_equal_the_plain_reference",
    "exec_mixes_sources": FLIGHT + "test_a_sequence_that_pauses_goes_on_with_its_own_token",
    "exec_reads_tables_late": FLIGHT + "test_greedy_tokens_equal_the_plain_reference",
    "exec_starts_rows_early": FLIGHT + "test_a_row_used_again_while_its_predecessor_is_in_flight_knows_nothing_of_it",
    "exec_moves_early": FLIGHT + "test_moves_follow_what_the_step_before_writes",
}


def test_every_broken_queue_of_two_steps_is_caught(harness) -> None:
    harness.assert_all_die("executor", "executor_flight_mutants", CAUGHT_IN_FLIGHT, healthy="exec_overlapped")


@pytest.mark.parametrize("name", ["exec_overlapped", "exec_on_fake_device"])
def test_a_sound_queue_of_two_steps_passes_everything(harness, name) -> None:
    files = ["test_executor.py", "test_executor_moves.py", "test_executor_flight.py"]
    (report,) = harness.run_report("executor", ["executor_flight_mutants"], [name], files)
    outcomes = {test: facts["outcome"] for test, facts in report["tests"].items()}
    assert {test: outcome for test, outcome in outcomes.items() if outcome != "passed"} == {}
    assert len(outcomes) > 30
