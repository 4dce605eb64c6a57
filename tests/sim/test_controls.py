"""Controls: where theory or plain sense says what a simulation must find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paged_core.sim.measures import Window, measure
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.workload.arrivals import POISSON, arrival_times
from paged_core.workload.lengths import alpaca, arrivals_of, constant, sharegpt

if TYPE_CHECKING:
    from paged_core.sim.measures import Measures
    from paged_core.workload.lengths import Lengths

PAGED = System(sched="prefill_first", chunked_prefill=False)
ORACLE = replace(PAGED, alloc="contiguous", plugins={"alloc_contiguous": {"reservation": "oracle"}})
PLENTY = 20_000
"""Blocks, of which no load below needs a tenth."""


def served(system: System, lengths: Lengths, rate: float) -> Measures:
    """Everybody's figures, from first to last, arrivals as a Poisson process."""
    times = arrival_times(len(lengths.pairs), rate, POISSON, np.random.default_rng(11))
    outcome = simulate(system, arrivals_of(lengths, times))
    assert outcome.requests.finished.all()
    return measure(outcome, None, Window.of(outcome, warmup=0.0))


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_at_a_time_is_the_queue_of_the_textbook(load: float) -> None:
    """Poisson arrivals, equal work D, one server (M/D/1): a request waits R D^2 / (2 (1 - R D)) on average."""
    alone = replace(PAGED, max_num_seqs=1)
    service_s = served(alone, constant(1, 512, 1), 1.0).e2e
    assert service_s is not None
    rate, d = load / service_s.mean, service_s.mean
    found = served(alone, constant(6000, 512, 1), rate)
    assert found.ttft is not None
    assert found.busy == pytest.approx(load, rel=0.05)
    assert found.ttft.mean == pytest.approx(d + rate * d * d / (2 * (1 - load)), rel=0.05)


def test_without_want_of_memory_how_it_is_kept_makes_no_difference() -> None:
    lengths = alpaca(300, np.random.default_rng(3))
    paged, oracle = (served(replace(one, num_blocks=PLENTY), lengths, 20.0) for one in (PAGED, ORACLE))
    assert oracle.latency == pytest.approx(paged.latency, rel=0.01)
    assert oracle.batch == pytest.approx(paged.batch, rel=0.01)


def test_with_want_of_memory_it_does() -> None:
    lengths = sharegpt(150, np.random.default_rng(3))
    paged, oracle = (served(one, lengths, 3.0) for one in (PAGED, ORACLE))
    assert oracle.latency > 2 * paged.latency
    assert oracle.batch < 0.75 * paged.batch


def test_equal_requests_that_fill_a_power_of_two_leave_an_oracle_little_to_lose() -> None:
    """Nothing is lost to rounding then; what is reserved for the rest of short answers is all that is left."""
    paged, oracle = (served(replace(one, num_blocks=960), constant(150, 480, 32), 12.0) for one in (PAGED, ORACLE))
    assert oracle.latency == pytest.approx(paged.latency, rel=0.1)
    assert oracle.batch == pytest.approx(paged.batch, rel=0.1)


def test_blocks_of_one_slot_waste_nothing_and_larger_ones_less_than_one_each() -> None:
    lengths = sharegpt(60, np.random.default_rng(3))
    waste = [served(replace(PAGED, block_size=size), lengths, 2.0).memory.waste for size in (1, 16, 64)]
    assert waste[0] == 0
    assert 0 < waste[1] < waste[2] < 0.2
