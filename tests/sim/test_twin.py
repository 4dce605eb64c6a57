"""The comparison itself: an engine that is its own simulation is off by nothing, whenever it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paged_core.engine.clock import VirtualClock
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.sim.twin import Comparison, Figures, run_real
from paged_core.workload.traces import Arrival

SYSTEM = System(model="tiny", cost="roofline", device="l4", num_blocks=200, max_num_seqs=4, token_budget=64)
ARRIVALS = [Arrival(0.003 * i, 5 + 3 * i, 4 + i) for i in range(8)]


def test_an_engine_is_measured_as_its_simulation_is() -> None:
    """Twice in a row, so that the second time its clock is somewhere else."""
    clock = VirtualClock(100.0)
    engine = SYSTEM.build(clock)
    expected = Figures.of(simulate(SYSTEM, ARRIVALS).requests)
    for _ in range(2):
        found = run_real(engine, clock, ARRIVALS, seed=0)
        for name in Figures.__dataclass_fields__:
            assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert not engine.has_unfinished
    engine.close()


def test_figures_are_those_of_the_requests() -> None:
    """One request alone: so many tokens over its latency."""
    outcome = simulate(SYSTEM, [Arrival(0.0, 5, 4)])
    figures = Figures.of(outcome.requests)
    latency = float(outcome.requests.latency_s[0])
    assert figures.throughput == pytest.approx(4 / latency)
    assert figures.latency_s == figures.latency_p90_s == pytest.approx(latency)
    assert figures.first_token_s == pytest.approx(float(outcome.steps.elapsed_s[0]))


def test_off_is_simulated_over_the_median_of_the_rounds() -> None:
    rounds = [Figures(throughput, 1.0, 1.0, 1.0) for throughput in (90.0, 100.0, 130.0)]
    found = Comparison("x", rounds, replace(rounds[0], throughput=110.0))
    assert found.off("throughput") == pytest.approx(0.1)
    assert found.spread("throughput") == pytest.approx(0.4)
    assert found.off("latency_s") == found.spread("latency_s") == 0
