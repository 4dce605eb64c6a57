"""Sweeps: points in order, alike however many processes find them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.bench.serve.figures import Slo
from paged_core.errors import ConfigError, UnknownPluginError
from paged_core.sim.capacity import Criterion
from paged_core.sim.sweep import Load, run, run_to_capacity
from paged_core.sim.system import System
from paged_core.workload.plan import Workload

if TYPE_CHECKING:
    from paged_core.sim.sweep import Point

LOAD = Load(Workload("alpaca", num_requests=12), warmup=0.0)
SYSTEMS = {"whole": System(sched="prefill_first", chunked_prefill=False), "chunks": System()}


def plain(points: list[Point]) -> list[Any]:
    """All but the time that it took."""
    return [replace(point, took_s=0.0) for point in points]


def test_points_come_by_system_and_rate_and_are_told_of() -> None:
    told: list[float] = []
    points = run(SYSTEMS, LOAD, (1.0, 4.0), progress=told.append)
    assert [(point.name, point.rate) for point in points] == [
        ("whole", 1.0),
        ("whole", 4.0),
        ("chunks", 1.0),
        ("chunks", 4.0),
    ]
    assert told == sorted(told)
    assert told[-1] == 4
    assert all(point.measures.all_finished and point.num_rows > point.num_steps > 0 for point in points)


def test_processes_find_the_same_points_in_the_same_order() -> None:
    assert plain(run(SYSTEMS, LOAD, (2.0,), jobs=2)) == plain(run(SYSTEMS, LOAD, (2.0,)))


def test_what_goes_wrong_in_a_process_is_raised_as_what_it_is() -> None:
    with pytest.raises(UnknownPluginError, match="no scheduler named 'nobody'"):
        run({name: replace(SYSTEMS["chunks"], sched="nobody") for name in ("a", "b")}, LOAD, (1.0,), jobs=2)
    with pytest.raises(ConfigError, match="none of at most 1 tokens"):
        run(SYSTEMS, replace(LOAD, workload=replace(LOAD.workload, most_tokens=1)), (1.0,))


def test_an_end_of_the_clock_leaves_requests_unfinished() -> None:
    (point,) = run({"one": System()}, replace(LOAD, until=3.0), (12.0,))
    assert point.measures.num_finished < point.measures.num_requests == 12
    assert not point.measures.all_finished


def test_a_search_ends_between_two_rates_of_which_one_is_too_fast() -> None:
    small = {"one": System(num_blocks=30)}
    load = replace(LOAD, workload=replace(LOAD.workload, num_requests=40))
    points = run_to_capacity(small, load, 1.0, Criterion(0.2))
    rates = [point.rate for point in points]
    kept = [point.rate for point in points if point.measures.latency <= 0.2]
    assert rates == sorted(set(rates))
    assert kept
    assert kept == rates[: len(kept)]
    assert rates[len(kept)] - kept[-1] <= 0.02 * kept[-1]


def test_a_search_for_what_no_rate_has_stops_while_there_are_requests() -> None:
    """Nobody has a first token within a millisecond, however few come."""
    load = Load(Workload("alpaca", duration_s=20.0), slo=Slo.parse("ttft:1"))
    points = run_to_capacity({"one": System()}, load, 2.0, Criterion())
    assert [point.rate for point in points] == [0.5, 1.0, 2.0]
    assert not any(point.measures.num_good for point in points)
