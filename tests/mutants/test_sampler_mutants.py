"""Every broken sampler is caught by the test named here, and sample_torch passes all of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

DRAWS, ROWS, EDITS, FAILURES, LOGPROBS, PROCESSORS, MODES, BEGUN = (
    f"test_sampler{part}.py::"
    for part in ("", "_rows", "_edits", "_failures", "_logprobs", "_processors", "_modes", "_begin")
)

CAUGHT_BY = {
    "sample_shared_seed": ROWS + "test_seeds_and_branches_draw_apart",
    "sample_no_seed": ROWS + "test_seeds_and_branches_draw_apart",
    "sample_by_place": EDITS + "test_a_penalty_stays_with_its_row_when_the_batch_is_reordered",
    "sample_top_k_more": DRAWS + "test_top_k_draws_from_exactly_the_k_best",
    "sample_best_few": DRAWS + "test_a_larger_vocabulary_is_cut_and_drawn_exactly",
    "sample_no_top_p": DRAWS + "test_draws_follow_the_filtered_softmax",
    "sample_min_tokens_less": EDITS + "test_no_end_before_min_tokens_and_any_end_after",
    "sample_early_stop_ids": EDITS + "test_no_end_before_min_tokens_and_any_end_after",
    "sample_nan_kills": FAILURES + "test_a_broken_row_fails_alone_with_a_reason",
    "sample_nan_unnoticed": FAILURES + "test_every_row_of_a_batch_may_fail",
    "sample_late_logprobs": LOGPROBS + "test_log_probabilities_are_those_of_the_raw_logits",
    "sample_rank_zero": LOGPROBS + "test_log_probabilities_are_those_of_the_raw_logits",
    "sample_forgets": ROWS + "test_a_row_started_anew_goes_on_as_if_nothing_had_happened",
    "sample_no_prompt": EDITS + "test_prompt_tokens_suffer_from_repetition_only",
    "sample_by_call": ROWS + "test_a_draw_depends_on_its_position_not_on_the_number_of_calls",
    "sample_neighbours": ROWS + "test_neighbours_and_their_order_change_nothing",
    "sample_no_penalties": EDITS + "test_a_declared_capability_has_an_effect",
    "sample_short_bad_words": EDITS + "test_a_bad_word_is_noticed_in_tokens_that_the_sampler_drew_itself",
    "sample_strict_end": ROWS + "test_ending_an_unknown_row_leaves_everybody_alone",
    "sample_no_strides": DRAWS + "test_logits_of_any_strides_and_float_type_are_read_alike",
    "sample_raw_candidates": LOGPROBS + "test_candidates_are_the_best_tokens_after_all_edits",
    "sample_mode_ignored": MODES + "test_each_mode_reports_what_its_name_says",
    "sample_mode_processed": MODES + "test_each_mode_reports_what_its_name_says",
    "sample_list_ignored": MODES + "test_listed_tokens_are_reported_instead_of_the_best",
    "sample_shared_processors": PROCESSORS + "test_a_processor_is_told_of_every_token_of_its_own_row",
    "sample_backwards_processors": PROCESSORS + "test_processors_act_in_the_order_given",
    "sample_forgetful_processors": PROCESSORS + "test_a_row_started_anew_tells_a_new_fork_the_whole_output",
    "sample_deaf_processors": PROCESSORS + "test_a_processor_is_told_of_every_token_of_its_own_row",
    "sample_processor_kills": PROCESSORS + "test_a_processor_that_raises_fails_its_own_draw_and_names_its_class",
    "sample_single_processors": PROCESSORS + "test_rows_of_one_class_are_handed_over_together_and_nobody_else_changes",
    "sample_forced_swallowed": PROCESSORS
    + "test_forced_tokens_are_taken_where_the_parameters_allow_it_and_told_to_the_processor",
    "sample_forced_unasked": PROCESSORS
    + "test_forced_tokens_are_taken_where_the_parameters_allow_it_and_told_to_the_processor",
    "sample_forced_untold": PROCESSORS
    + "test_forced_tokens_are_taken_where_the_parameters_allow_it_and_told_to_the_processor",
    "sample_begun_uncounted": BEGUN + "test_what_was_begun_is_counted_before_the_next_draw",
    "sample_begun_elsewhere": BEGUN + "test_draws_that_are_told_later_are_those_of_sample",
    "sample_begun_as_one": BEGUN + "test_draws_that_are_told_later_are_those_of_sample",
}


def test_every_broken_sampler_is_caught(harness) -> None:
    harness.assert_all_die("sampler", "sampler_mutants", CAUGHT_BY, healthy="sample_torch")
