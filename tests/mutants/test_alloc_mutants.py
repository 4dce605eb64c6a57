"""Every broken allocator is caught by the test named here, and alloc_cow passes all of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

BLOCKS, PREFIX, SWAP = (f"test_allocator{part}.py::" for part in ("", "_prefix", "_swap"))
PARTIAL = "test_allocator_partial.py::"
SCRATCH, PLANS = "test_allocator_scratch.py::", "test_allocator_plans.py::"
TRACES = "test_allocator_laws.py::test_any_sequence_of_calls_agrees_with_the_set_based_model"
COST = "test_cost.py::"
GANGS = "test_engine_gangs.py::"
RESERVES = "test_allocator_reserves.py::"

CAUGHT_BY = {
    "alloc_leaks_on_free": BLOCKS + "test_after_the_last_sequence_left_every_block_is_free",
    "alloc_fork_counts_twice": BLOCKS + "test_a_forked_tree_gives_back_every_block_in_any_order",
    "alloc_fork_counts_nothing": BLOCKS + "test_a_fork_never_allocates_and_outlives_its_parent",
    "alloc_no_salt": PREFIX + "test_tenants_with_different_salts_share_nothing",
    "alloc_adapter_is_salt": PREFIX + "test_an_adapter_is_never_taken_for_a_salt",
    "alloc_no_chain": PREFIX + "test_the_same_tokens_after_another_past_are_no_hit",
    "alloc_constant_root": PREFIX + "test_hash_keys_differ_between_processes_unless_a_seed_is_set",
    "alloc_publishes_unwritten": PREFIX + "test_blocks_that_were_never_written_are_never_hit",
    "alloc_full_prompt_hit": PREFIX + "test_at_least_one_token_is_always_computed",
    "alloc_hits_cold": PREFIX + "test_a_cold_sequence_hits_nothing_but_publishes",
    "alloc_evicts_opened": PREFIX + "test_a_hit_that_was_opened_is_not_evicted_by_those_who_grow",
    "alloc_forgets_freed": PREFIX + "test_a_freed_prompt_stays_a_hit_and_is_lost_from_its_tail",
    "alloc_skips_copy": BLOCKS + "test_of_k_sharers_the_first_k_minus_1_copy_and_the_last_writes_in_place",
    "alloc_all_sharers_copy": BLOCKS + "test_of_k_sharers_the_first_k_minus_1_copy_and_the_last_writes_in_place",
    "alloc_copies_full_blocks": BLOCKS + "test_a_fork_on_a_block_end_copies_nothing",
    "alloc_swaps_shared_twice": SWAP + "test_a_shared_block_moves_once_and_is_shared_again",
    "alloc_swap_loses_sharing": SWAP + "test_a_shared_block_moves_once_and_is_shared_again",
    "alloc_host_leak": SWAP + "test_a_group_that_ends_while_away_gives_back_its_host_blocks",
    "alloc_table_off_by_one": BLOCKS + "test_blocks_come_one_at_a_time_as_tokens_do",
    "alloc_hands_out_twice": BLOCKS + "test_a_freed_block_is_never_in_two_tables_afterwards",
    "alloc_no_room_takes_all": BLOCKS + "test_no_room_answers_none_and_changes_nothing",
    "alloc_reserves_secretly": BLOCKS + "test_lengths_around_a_block_end_take_exactly_the_blocks_they_fill",
    "alloc_shrinks_too_little": BLOCKS + "test_shrinking_gives_back_the_blocks_wholly_beyond",
    "alloc_tolerant": BLOCKS + "test_wrong_use_is_refused_and_changes_nothing",
}

PLANS_CAUGHT_BY = {
    "alloc_over_promises": PLANS + "test_whatever_a_scratch_accepted_can_be_carried_out_in_ledger_order",
    "alloc_gives_back_shared": SCRATCH + "test_a_block_shared_among_victims_is_freed_by_the_last_of_them",
    "alloc_uncounted_copies": SCRATCH + "test_need_of_a_gang_is_need_decodes",
    "alloc_hoards": COST + "test_decode_steps_of_this_allocator_leave_nothing_behind",
    "alloc_copies_tables": COST + "test_a_decode_step_of_this_allocator_allocates_little",
    "alloc_probes_again": COST + "test_decoding_with_this_allocator_calls_no_hook",
}

PARTIAL_CAUGHT_BY = {
    "alloc_writes_source": PARTIAL + "test_the_source_of_a_copy_stays_what_it_was",
    "alloc_claims_too_much": PARTIAL + "test_a_prompt_that_parts_inside_a_block_hits_up_to_there",
    "alloc_takes_any_sibling": PARTIAL + "test_the_longest_of_many_beginnings_is_taken",
    "alloc_forgets_whose": PARTIAL + "test_beginnings_are_shared_with_nobody_else",
    "alloc_lets_go_at_once": PARTIAL + "test_a_source_is_not_handed_out_in_the_step_that_copies_it",
    "alloc_keeps_source": PARTIAL + "test_a_source_is_let_go_with_the_sequence_that_copied_it",
    "alloc_borrows_everything": PARTIAL + "test_a_prompt_that_fills_the_pool_still_fits_when_a_part_of_it_is_cached",
    "alloc_uncharged_copies": PARTIAL + "test_a_scratch_counts_the_copy_and_its_source",
    "alloc_never_borrows": PARTIAL + "test_of_a_cached_prompt_only_the_last_token_is_computed",
    "alloc_borrows_cold": PARTIAL + "test_beginnings_are_shared_with_nobody_else",
}

RUNS_CAUGHT_BY = {
    "alloc_never_merges": RESERVES + "test_a_pool_that_was_emptied_is_as_good_as_a_new_one",
    "alloc_overlaps": BLOCKS + "test_every_block_of_the_pool_can_be_used_and_is_handed_out_once",
    "alloc_copies_nothing": TRACES,
    "alloc_branches_forget": GANGS + "test_branches_do_not_depend_on_how_this_allocator_shares",
    "alloc_lets_go_at_once": TRACES,
    "alloc_keeps_spares": GANGS + "test_beams_do_not_depend_on_how_this_allocator_shares",
    "alloc_counts_blocks": PLANS + "test_whatever_a_scratch_accepted_can_be_carried_out_in_ledger_order",
    "alloc_refuses_nobody": RESERVES + "test_a_request_is_refused_exactly_if_the_empty_pool_has_no_room_for_its_prompt",
    "alloc_holds_less": RESERVES + "test_held_slots_are_no_fewer_than_tokens_and_no_more_than_used_blocks_have",
    "alloc_holds_more": RESERVES + "test_tokens_within_what_is_set_aside_take_no_block_and_move_nothing",
}


def test_every_broken_allocator_is_caught(harness) -> None:
    harness.assert_all_die("alloc", "alloc_mutants", CAUGHT_BY, healthy="alloc_cow")


def test_every_broken_scratch_and_every_costly_step_is_caught(harness) -> None:
    harness.assert_all_die("alloc", "alloc_plan_mutants", PLANS_CAUGHT_BY, healthy="alloc_cow")


def test_every_broken_hit_inside_a_block_is_caught(harness) -> None:
    harness.assert_all_die("alloc", "alloc_partial_mutants", PARTIAL_CAUGHT_BY, healthy="alloc_cow")


def test_every_broken_allocator_of_runs_is_caught(harness) -> None:
    harness.assert_all_die("alloc", "alloc_run_mutants", RUNS_CAUGHT_BY, healthy="alloc_contiguous")


def test_allocators_of_runs_are_sound_however_much_they_reserve(harness) -> None:
    """Also one whose sequences outgrow what was set aside, and move."""
    names = ["alloc_pow2", "alloc_oracle", "alloc_guess"]
    files = [path.split("::")[0] for path in (BLOCKS, RESERVES, SCRATCH, PLANS, TRACES, GANGS)]
    plugins = harness.run_report("alloc", ["alloc_run_mutants"], names, files)
    assert sorted(plugin["name"] for plugin in plugins) == sorted(names)
    broken = [
        f"{plugin['name']}: {test}: {facts.get('message', '')}"
        for plugin in plugins
        for test, facts in plugin["tests"].items()
        if facts["outcome"] != "passed"
    ]
    assert not broken, "\n".join(broken)


def test_any_trace_alone_finds_what_no_scenario_names(harness) -> None:
    """Without any scenario: leaks, lost references, skipped copies and foreign hits fall to random calls."""
    names = ["alloc_leaks_on_free", "alloc_fork_counts_nothing", "alloc_skips_copy", "alloc_no_salt", "alloc_no_chain"]
    names += ["alloc_full_prompt_hit", "alloc_hands_out_twice", "alloc_swap_loses_sharing", "alloc_publishes_unwritten"]
    outcomes = harness.run_suite("alloc", ["alloc_mutants"], names, [TRACES])
    survivors = [name for name in names if outcomes[name, TRACES].status != "failed"]
    assert not survivors, f"{survivors} survive random calls"
