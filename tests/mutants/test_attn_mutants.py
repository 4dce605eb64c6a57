"""Every broken attention backend is caught by the test named here, and attn_torch passes all of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SHAPES, MEMORY, BLOCKS, LAWS, CODES, E4M3, GRAPHS = (
    f"test_attention{part}.py::" for part in ("", "_memory", "_blocks", "_laws", "_codes", "_e4m3", "_graphs")
)

CAUGHT_BY = {
    "attn_table_off_by_one": MEMORY + "test_a_block_may_occur_anywhere_in_a_table",
    "attn_no_mask": SHAPES + "test_chunked_prefill_equals_whole_prefill",
    "attn_chunk_at_zero": SHAPES + "test_chunked_prefill_equals_whole_prefill",
    "attn_window_off_by_one": SHAPES + "test_sliding_window_sees_the_last_w_positions",
    "attn_no_scale": SHAPES + "test_logits_are_scaled_by_the_layer",
    "attn_no_softcap": SHAPES + "test_softcap_bounds_the_logits",
    "attn_heads_interleaved": SHAPES + "test_query_heads_read_the_key_value_head_of_their_group",
    "attn_tail_included": MEMORY + "test_nan_in_slots_nobody_owns_does_not_spread",
    "attn_slot_before": MEMORY + "test_every_key_and_value_is_written_once_and_where_its_slot_says",
    "attn_negative_slots": MEMORY + "test_negative_slots_write_nothing",
    "attn_next_block_too": MEMORY + "test_blocks_of_neighbours_are_not_touched",
    "attn_values_as_keys": MEMORY + "test_keys_and_values_are_not_confused",
    "attn_no_strides": MEMORY + "test_inputs_strided_over_the_token_axis",
    "attn_offsets_32": BLOCKS + "test_offsets_beyond_32_bits_are_not_wrapped",
    "attn_copy_first_layer": BLOCKS + "test_copies_reach_their_targets_in_every_layer_and_nothing_else",
    "attn_copy_first_pair": BLOCKS + "test_copies_reach_their_targets_in_every_layer_and_nothing_else",
    "attn_swap_reversed": BLOCKS + "test_swap_out_and_in_keeps_every_bit_of_every_layer",
    "attn_lse_no_maximum": LAWS + "test_log_sum_exp_equals_the_oracle",
    "attn_neighbours": LAWS + "test_neighbours_do_not_change_a_result",
    "attn_shares_too_much": LAWS + "test_a_shared_prefix_that_is_announced_changes_no_result",
    "attn_rope_sign": LAWS + "test_fused_rotation_equals_rotating_first",
    "attn_rope_everywhere": LAWS + "test_a_layer_without_rotary_positions_is_not_rotated",
    "attn_codes_coarse": CODES + "test_codes_are_as_fine_as_the_reference",
    "attn_codes_one_scale": CODES + "test_what_is_stored_depends_on_the_row_alone",
    "attn_codes_copied_alone": CODES + "test_codes_travel_with_a_copied_block",
    "attn_accepts_anything": SHAPES + "test_softcap_bounds_the_logits",
}

ON_DEVICES_CAUGHT_BY = {
    "attn_e4m3_cut_off": E4M3 + "test_numbers_are_rounded_to_the_nearest_and_ties_to_even",
    "attn_e4m3_one_scale": E4M3 + "test_each_head_is_stored_by_its_own_scale",
    "attn_graphs_snapshot": GRAPHS + "test_what_was_launched_for_one_batch_serves_the_next",
    "attn_graphs_padding": GRAPHS + "test_padding_is_harmless",
}


def test_every_broken_attention_backend_is_caught(harness) -> None:
    harness.assert_all_die("attn", "attn_mutants", CAUGHT_BY, healthy="attn_torch")


def test_every_defect_of_what_devices_need_is_caught(harness) -> None:
    harness.assert_all_die("attn", "attn_device_mutants", ON_DEVICES_CAUGHT_BY, healthy="attn_graphs_healthy")
