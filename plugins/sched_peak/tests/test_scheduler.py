"""PeakScheduler: what it predicts, whom it lets in by that, and what it learns from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paged_conformance.benches.traffic import Ask, play
from paged_sched_peak import PeakProvider, PeakSettings
from paged_sched_peak.lengths import Lengths
from pydantic import ValidationError

from paged_core.api.params import SamplingParams
from paged_core.api.scheduler import SchedulerNeed
from paged_core.testing.build import EngineShape, build_engine, default_plugins
from paged_core.testing.shadow import ShadowExecutor

NEED = SchedulerNeed(256, 16, 96, 1, 200)


def lengths_of(*values, window=1000):
    found = Lengths(window)
    for value in values:
        found.add(value)
    return found


def test_without_a_past_an_answer_is_predicted_at_its_limit():
    assert lengths_of().predict(3, 40, 0.5) == 40
    assert lengths_of(10, 20).predict(20, 40, 0.5) == 40, "nothing remembered became longer than what it has"


def test_a_prediction_is_a_quantile_of_those_that_became_longer():
    past = lengths_of(40, 10, 30, 20)
    assert [past.predict(0, 99, quantile) for quantile in (0.0, 0.3, 0.6, 0.99)] == [10, 20, 30, 40]
    assert [past.predict(20, 99, quantile) for quantile in (0.0, 0.49, 0.5, 0.99)] == [30, 30, 40, 40]
    assert past.predict(0, 15, 0.99) == 15, "its own limit holds"


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 10))
def test_only_the_window_is_remembered(values, window):
    past = lengths_of(*values, window=window)
    recent = sorted(values[-window:])
    predicted = [past.predict(0, 99, (i + 0.5) / len(recent)) for i in range(len(recent))]
    assert predicted == recent


def test_quantiles_of_successive_requests_are_spread_evenly():
    past = Lengths(1)
    drawn = sorted(past.next_quantile() for _ in range(100))
    assert max(abs(value - (i + 0.5) / 100) for i, value in enumerate(drawn)) < 0.02


def test_the_past_is_what_ended_by_itself_or_at_its_limit():
    scheduler = PeakProvider().create(NEED, PeakSettings(), default_plugins())
    engine = build_engine(ShadowExecutor(4), EngineShape(), wrap_scheduler=lambda _: scheduler)
    for name, num in (("five", 5), ("given up", 30), ("two", 2)):
        engine.add_request(name, "abc", SamplingParams(max_tokens=num, temperature=0, ignore_eos=True, n=1))
    for _ in range(8):
        engine.step()
    engine.abort(["given up"])
    assert [scheduler._lengths.predict(0, 99, quantile) for quantile in (0.0, 0.99)] == [2, 5]


def admitted_first(past, claims, *, margin=0.0, block_size=1, num_blocks=200):
    """How many of `claims` (announced lengths, prompts of ten) enter in the first step after `past`."""
    need = SchedulerNeed(256, 16, 96, block_size, num_blocks)
    scheduler = PeakProvider().create(need, PeakSettings(margin=margin), default_plugins())
    for value in past:
        scheduler._lengths.add(value)
    shape = EngineShape(
        block_size=block_size, num_blocks=num_blocks, max_model_len=96, token_budget=256, prefix_cache=False
    )
    asks = [Ask(f"r{i}", (i + 1,) * 10, num) for i, num in enumerate(claims)]
    done = play(default_plugins(), shape, asks, wrap=lambda _: scheduler)
    done.assert_sound()
    assert not done.recorder.breaches
    return len(done.recorder.notes[0].admitted), sum(done.preemptions.values())


def test_without_a_past_it_reckons_with_announced_ends():
    """Ten tokens and forty to come each: four are full at 200 slots."""
    assert admitted_first([], [40] * 8) == (4, 0)


def test_equal_futures_end_together_and_unequal_ones_make_room_for_each_other():
    assert admitted_first([20] * 10, [40] * 8)[0] == 6  # 6 * (10 + 20) = 180
    assert admitted_first([4, 36] * 5, [40] * 8)[0] > 4  # worst case by their mean: half end when little is full


def test_the_margin_stays_free():
    assert admitted_first([], [40] * 8, margin=0.1) == (3, 0)


def test_blocks_are_counted_as_if_the_last_one_were_nearly_empty():
    assert admitted_first([], [38] * 8, block_size=4, num_blocks=51) == (4, 0)
    assert admitted_first([], [39] * 8, block_size=4, num_blocks=51)[0] == 3  # 4 * (10 + 39 + 3) = 208 of 204


def test_a_wrong_prediction_costs_a_preemption_and_no_token():
    entered, preempted = admitted_first([1] * 20, [40] * 8)
    assert entered == 8
    assert preempted > 0


def test_settings_out_of_range_are_refused():
    for wrong in ({"window": 0}, {"margin": 1.0}, {"margin": -0.1}, {"windw": 3}):
        with pytest.raises(ValidationError):
            PeakSettings(**wrong)
