"""Every broken loader is caught by the test named here; load_hf passes all of them, load_gguf with a sample file."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SOUND, DAMAGED = "test_loader.py::", "test_loader_damage.py::"

CAUGHT_BY = {
    "load_missing_unnoticed": DAMAGED + "test_a_missing_tensor_is_told",
    "load_zeros": DAMAGED + "test_weights_cut_short_anywhere_are_told",
    "load_swapped": SOUND + "test_weights_are_the_stored_values_under_their_canonical_names",
    "load_twice": SOUND + "test_weights_come_once_complete_and_in_shape_under_canonical_names",
    "load_once": SOUND + "test_weights_may_be_streamed_again_and_by_another_loader",
    "load_key_errors": DAMAGED + "test_a_config_that_cannot_be_is_told",
    "load_nameless": DAMAGED + "test_something_else_under_the_name_of_the_weights_is_told",
    "load_pickles": DAMAGED + "test_pickled_weights_are_refused_unopened",
    "load_runs_code": DAMAGED + "test_code_that_comes_with_a_model_is_not_run",
    "load_shared_buffer": SOUND + "test_many_threads_may_use_one_tokenizer",
    "load_whole_characters": SOUND + "test_half_a_character_is_shown_as_such",
}


def test_every_broken_loader_is_caught(harness) -> None:
    harness.assert_all_die("loader", "loader_mutants", CAUGHT_BY, healthy="load_hf")
