"""Histograms of an engine's life, against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paged_core.api.output import RequestMetrics
from paged_core.api.params import SamplingParams
from paged_core.engine.tallies import BOUNDS, Tallies
from paged_core.testing.build import EngineShape, build_engine, torch_sampler
from paged_core.testing.scripted import ScriptedExecutor
from paged_core.testing.seams import PreemptNow
from paged_core.testing.shadow import ShadowExecutor
from paged_core.testing.shadow_logits import ShadowLogits


def rows(*numbers):
    return np.array(numbers, dtype=np.int32)


def test_every_histogram_has_rising_bounds():
    for bounds in BOUNDS.values():
        assert list(bounds) == sorted(set(bounds))


def test_a_value_counts_in_the_first_bucket_that_may_hold_it():
    tallies = Tallies(4)
    for num_tokens in (1, 2, 8, 9, 20000):
        tallies.step(num_tokens, rows(), 0.0)
    found = tallies.sheet().distributions["iteration_tokens"]
    assert found.bounds[:4] == (1, 8, 16, 32)
    assert found.counts == (1, 2, 1, *[0] * (len(found.bounds) - 3), 1)
    assert (found.count, found.total) == (5, 20020)


def test_a_token_is_timed_from_the_one_before_it_in_its_sequence():
    tallies = Tallies(4)
    for row in (0, 3):
        tallies.started(row)
    tallies.step(2, rows(0, 3), 1.0)
    tallies.step(1, rows(3), 1.5)
    tallies.step(1, rows(0), 3.0)
    assert tallies.sheet().distributions["inter_token_latency"].total == pytest.approx(0.5 + 2.0)
    tallies.started(0)  # another sequence: how long the row lay idle is nobody's latency
    tallies.step(1, rows(0), 100.0)
    found = tallies.sheet().distributions["inter_token_latency"]
    assert (found.count, found.total) == (2, pytest.approx(2.5))


@pytest.mark.parametrize(
    ("reasons", "counted"),
    [(["stop", "length"], "length"), (["stop"], "stop"), (["stop", "abort"], "abort"), (["error", "abort"], "error")],
)
def test_a_request_counts_once_for_its_worst_reason(reasons, counted):
    tallies = Tallies(1)
    tallies.finished(RequestMetrics(1.0, finished_time=2.0), reasons)
    assert {name: n for name, n in tallies.sheet().finished.items() if n} == {counted: 1}


def test_one_that_never_answered_has_no_share_in_latencies_of_tokens():
    tallies = Tallies(1)
    tallies.finished(RequestMetrics(1.0, 1.5, None, 2.0), ["abort"])
    found = tallies.sheet().distributions
    assert found["e2e_latency"].count == found["prompt_tokens"].count == 1
    assert not any(found[name].count for name in ("decode_time", "inference_time", "time_per_output_token"))


def test_times_of_a_request_on_the_engine_s_clock():
    engine = build_engine(ScriptedExecutor([97] * 10), EngineShape(token_budget=4, prefix_cache=False))
    engine.add_request("a", [1] * 8, SamplingParams(max_tokens=5, temperature=0.0))
    while engine.has_unfinished:
        engine.step()
    sheet = engine.tallies()
    found = {name: (one.count, pytest.approx(one.total)) for name, one in sheet.distributions.items()}
    assert found == {
        "time_to_first_token": (1, 0.002),  # two steps of a millisecond for the prompt
        "inter_token_latency": (4, 0.004),
        "time_per_output_token": (1, 0.001),
        "e2e_latency": (1, 0.006),
        "queue_time": (1, 0.0),
        "prefill_time": (1, 0.002),
        "decode_time": (1, 0.004),
        "inference_time": (1, 0.006),
        "prompt_tokens": (1, 8),
        "generation_tokens": (1, 5),
        "iteration_tokens": (6, 12),
    }
    assert sheet.num_prompt == 8
    assert sheet.finished["length"] == sum(sheet.finished.values()) == 1


@pytest.mark.parametrize(
    "params", [SamplingParams(n=3, max_tokens=4), SamplingParams(use_beam_search=True, beam_width=3, max_tokens=4)]
)
def test_x03_a_request_of_several_branches_is_one_request(plugins, params):
    shape = EngineShape()
    engine = build_engine(ShadowLogits(shape.block_size, torch_sampler(shape, plugins)), shape, plugins=plugins)
    engine.add_request("a", [1, 2, 3], params)
    while engine.has_unfinished:
        engine.step()
    sheet = engine.tallies()
    assert sum(sheet.finished.values()) == 1
    assert sheet.num_prompt == 3
    assert sheet.distributions["time_to_first_token"].count == 1


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_what_a_preemption_costs_is_counted_by_its_kind(plugins, mode):
    shape = EngineShape(preempt=f"preempt_{mode}")
    engine = build_engine(
        ShadowExecutor(shape.block_size),
        shape,
        plugins=plugins,
        wrap_scheduler=lambda inner: PreemptNow(inner, lambda step, group: step == 3 and group.num_preemptions == 0),
    )
    engine.add_request("a", [1] * 8, SamplingParams(max_tokens=8, ignore_eos=True))
    while engine.has_unfinished:
        engine.step()
    stats = engine.stats()
    assert stats.preemptions[mode] == sum(stats.preemptions.values()) == 1
    assert stats.preempted_tokens[mode] == sum(stats.preempted_tokens.values()) == 10, "the prompt and two more"
    assert stats.preemption_s[mode] == sum(stats.preemption_s.values()) > 0
