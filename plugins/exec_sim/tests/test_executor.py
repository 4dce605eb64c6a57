"""SimExecutor: what a step takes, and what `wait` does. Its answers: test_answers.py, and the conformance suite."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from paged_exec_sim import SimExecutorProvider, SimSettings

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.batch import RowStart, StepPlan
from paged_core.api.params import SamplingParams
from paged_core.errors import EngineDeadError

SETTINGS = {"device": "a100-40gb"}


def ints(*values):
    return np.array(values, dtype=np.int32)


def decode(length=100, **fields):
    """One sequence of `length` tokens decodes."""
    start = RowStart(0, SamplingParams(), 5, 0, ints(*range(length - 1)), ints(7))
    plan = StepPlan(
        0, ints(1), ints(length - 1), ints(0, 1), ints(0), ints(length), ints(0), ints(0), ints(length), ints(0)
    )
    return replace(plan, started=[start], **fields)


@pytest.fixture
def seconds(need):
    """Runs a plan on an executor of its own and says what it took."""

    def run(plan, **settings):
        executor = SimExecutorProvider().create(need, SimSettings(**(SETTINGS | settings)), None)
        executor.start(8, 8, np.zeros((8, 8), np.int32))
        return executor.collect(executor.submit(plan)).elapsed_s

    return run


def test_a_decode_takes_what_the_published_fit_says(seconds) -> None:
    expected = 23.48 * 1.31 + 5.93e-4 * 1.31 * 100 + 0.0607
    assert seconds(decode()) * 1000 == pytest.approx(expected)


def test_swapped_blocks_take_calls_and_bytes_both_ways(seconds) -> None:
    """80 chunks of 2.2 us and 13.1 MB at 25 GB/s a block."""
    block = 80 * 2.2e-6 + 16 * 819_200 / 25e9
    moved = decode(swap_out=[SwapPair(1, 0), SwapPair(2, 1)], swap_in=[SwapPair(3, 4)])
    assert seconds(moved) - seconds(decode()) == pytest.approx(3 * block)
    dear = seconds(moved, call_us=22.0, link_gb_per_s=2.5) - seconds(decode())
    assert dear == pytest.approx(30 * block)


def test_copies_take_the_devices_own_bandwidth(seconds) -> None:
    copies = decode(copies=[BlockCopy(1, 2), BlockCopy(3, 4)])
    assert seconds(copies) - seconds(decode()) == pytest.approx(80 * 2.2e-6 + 2 * 2 * 16 * 819_200 / 1.555e12)


def test_a_step_that_only_moves_takes_only_the_moves(seconds) -> None:
    nothing = ints()
    plan = StepPlan(0, nothing, nothing, ints(0), nothing, nothing, nothing, nothing, nothing, nothing)
    assert seconds(plan) == 0
    assert seconds(replace(plan, swap_in=[SwapPair(0, 1)])) == pytest.approx(80 * 2.2e-6 + 16 * 819_200 / 25e9)


def test_wait_lets_a_step_last_as_long_as_it_says(seconds) -> None:
    begin = time.monotonic()
    elapsed = seconds(decode(), wait=True)
    assert time.monotonic() - begin >= elapsed > 0.03


def test_who_asks_for_no_simulation_is_told_that_it_is_one(need, caplog) -> None:
    with caplog.at_level("INFO", "paged_core.news"):
        SimExecutorProvider().create(replace(need, required=frozenset({"simulated"})), SimSettings(), None)
        assert not caplog.messages
        SimExecutorProvider().create(need, SimSettings(), None)
    assert "noise" in caplog.messages[0]


def test_before_start_and_after_close_it_is_dead(need) -> None:
    executor = SimExecutorProvider().create(need, SimSettings(), None)
    with pytest.raises(EngineDeadError):
        executor.submit(decode())
    executor.start(8, 8, np.zeros((8, 8), np.int32))
    executor.close()
    with pytest.raises(EngineDeadError):
        executor.submit(decode())
