"""Every broken preemption plugin is caught by the test named here; both healthy ones pass all of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

ALONE, ENGINE = "test_preemption.py::", "test_preemption_engine.py::"

CAUGHT_BY = {
    "preempt_undeclared": ALONE + "test_only_declared_modes_are_chosen",
    "preempt_unknown_mode": ALONE + "test_only_declared_modes_are_chosen",
    "preempt_negative": ALONE + "test_prices_are_finite_and_not_negative",
    "preempt_nan": ALONE + "test_prices_are_finite_and_not_negative",
    "preempt_raises": ENGINE + "test_a_full_host_pool_stops_nobody",
    "preempt_alters": ALONE + "test_a_price_is_a_question_that_changes_no_group",
    "preempt_wipes_token": ENGINE + "test_every_generated_token_survives_eviction",
    "preempt_counts": ALONE + "test_asking_for_a_price_twice_gives_the_same_answer",
    "preempt_never_swaps": ALONE + "test_every_declared_mode_is_chosen_somewhere",
}


def test_every_broken_preemption_plugin_is_caught(harness) -> None:
    harness.assert_all_die("preempt", "preempt_mutants", CAUGHT_BY, healthy="preempt_swap")


def test_recompute_passes_what_catches_the_mutants(harness) -> None:
    outcomes = harness.run_suite("preempt", [], ["preempt_recompute"], CAUGHT_BY.values())
    assert {pair: outcome.status for pair, outcome in outcomes.items()} == {
        ("preempt_recompute", test): "passed" for test in CAUGHT_BY.values()
    }
