from __future__ import annotations

import json
import math

import numpy as np
import pytest

from paged_core.sim.outcome import Outcome, Requests, Steps
from paged_core.sim.reproduce.measure import Measured, measured
from paged_core.sim.system import System


def outcome(finish_s: list[float]) -> Outcome:
    """Two requests; one step of 10 s in the warm-up, then two of 45 s each, in a trace of 100 s."""
    ints = lambda *values: np.array(values, dtype=np.int64)  # noqa: E731
    requests = Requests(
        arrival_s=np.array([0.0, 20.0]),
        first_token_s=np.array([1.0, 21.0]),
        finish_s=np.array(finish_s),
        prompt_tokens=ints(5, 5),
        output_tokens=ints(10, 20),
        generated_tokens=ints(10, 20),
        num_preemptions=ints(0, 3),
        cached_tokens=ints(0, 0),
        rejected=np.zeros(2, dtype=bool),
        cut=np.zeros(2, dtype=bool),
        client=np.array(["", ""]),
    )
    steps = Steps(
        begin_s=np.array([0.0, 10.0, 55.0]),
        elapsed_s=np.array([10.0, 45.0, 45.0]),
        num_groups=ints(9, 1, 3),
        num_seqs=ints(9, 2, 6),
        num_waiting=ints(0, 0, 0),
        num_preempted=ints(0, 0, 1),
        prefill_tokens=ints(5, 5, 0),
        decode_tokens=ints(0, 0, 3),
        used_slots=ints(90, 40, 60),
        token_slots=ints(90, 20, 40),
        reserved_slots=ints(0, 15, 5),
        internal_slots=ints(0, 5, 15),
        total_slots=ints(100, 100, 100),
        saved_blocks=ints(5, 0, 2),
    )
    return Outcome(
        system=System(block_size=10),
        requests=requests,
        steps=steps,
        end_s=100.0,
        plugins={},
        cost="",
        reasons={},
        preemptions={"recompute": 2, "swap": 1},
        prefix_queries=0,
        prefix_hits=0,
        wall_s=0.0,
    )


def test_averages_leave_out_the_warm_up() -> None:
    found = measured(outcome([40.0, 60.0]), rate=0.02, seconds=100.0)
    assert found.batched == pytest.approx(2.0)
    assert (found.token, found.reserved, found.internal) == pytest.approx((0.30, 0.10, 0.10))
    assert found.other == pytest.approx(0.5)


def test_latency_is_the_mean_over_requests_of_seconds_an_output_token() -> None:
    found = measured(outcome([40.0, 60.0]), rate=0.02, seconds=100.0)
    assert found.normalized_latency == pytest.approx((40 / 10 + 40 / 20) / 2)


def test_there_is_no_latency_while_somebody_is_unanswered() -> None:
    found = measured(outcome([40.0, math.nan]), rate=0.02, seconds=100.0)
    assert math.isnan(found.normalized_latency)
    assert (found.finished, found.requests) == (1, 2)


def test_saving_is_blocks_spared_over_blocks_without_sharing() -> None:
    found = measured(outcome([40.0, 60.0]), rate=0.02, seconds=100.0)
    assert found.saved == pytest.approx((2 * 10 / 2) / (50 + 2 * 10 / 2))


def test_waste_is_of_the_blocks_in_use() -> None:
    assert measured(outcome([40.0, 60.0]), rate=0.02, seconds=100.0).tail == pytest.approx(1 - 30 / 50)


def test_preemptions_of_both_kinds_count() -> None:
    assert measured(outcome([40.0, 60.0]), rate=0.02, seconds=100.0).preemptions == 3


def test_a_measurement_survives_its_file() -> None:
    found = measured(outcome([40.0, math.nan]), rate=0.02, seconds=100.0)
    again = Measured.from_json(json.loads(json.dumps(found.as_json())))
    assert again.as_json() == found.as_json()
    assert math.isnan(again.normalized_latency)
    assert again.saved == pytest.approx(found.saved, rel=1e-5)
