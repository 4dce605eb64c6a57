from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from paged_core.sim.reproduce.setup import Setup
from paged_core.sim.reproduce.tasks import FULL, QUICK, TOP_S, At, Curve, walk
from tests.sim.reproduce.conftest import made

if TYPE_CHECKING:
    from paged_core.sim.reproduce.measure import Measured


def explodes_at(knee: float, tried: list[float]) -> object:
    """Latency of a queue: flat, then rising with the overload."""

    def run(rate: float) -> Measured:
        tried.append(rate)
        return made(rate=rate, normalized_latency=0.05 + max(0.0, 3 * (rate / knee - 0.9)))

    return run


@pytest.mark.parametrize("first", [0.1, 1.0, 1.9, 30.0])
def test_a_walk_brackets_the_threshold_from_wherever_it_begins(first: float) -> None:
    tried: list[float] = []
    points = walk(explodes_at(2.0, tried), first, 0.1, TOP_S)  # type: ignore[arg-type]
    assert [one.rate for one in points] == sorted(tried)
    low, high = next((one, two) for one, two in pairwise(points) if two.normalized_latency > 0.5)
    assert low.normalized_latency <= 0.5
    assert high.rate - low.rate <= 0.1 * low.rate
    assert points[-1].normalized_latency > TOP_S


def test_no_rate_is_tried_twice() -> None:
    tried: list[float] = []
    walk(explodes_at(2.0, tried), 1.0, 0.1, TOP_S)  # type: ignore[arg-type]
    assert len(tried) == len(set(tried))


def test_keys_tell_tasks_apart() -> None:
    setups = [
        Setup(),
        Setup("oracle"),
        Setup(model="opt-66b"),
        Setup(lengths="alpaca"),
        Setup(mode="sample", width=2),
        Setup(mode="sample", width=4),
        Setup(mode="beam", width=2),
        Setup(block_size=32),
        Setup(preempt="swap"),
    ]
    assert {one.name for one in fields(Setup)} == {
        "kind", "model", "lengths", "mode", "width", "block_size", "preempt"
    }, "another field must change the key too"  # fmt: skip
    tasks = [task for one in setups for task in (At(one, 1), At(one, 2), At(one, 1, drain=True), Curve(one, 1))]
    assert len({task.key for task in tasks}) == len(tasks)


def test_where_a_walk_begins_is_no_part_of_its_key() -> None:
    assert Curve(Setup(), 1).key == Curve(Setup(), 2).key


def test_quick_traces_are_shorter_and_tolerances_wider() -> None:
    assert QUICK.seconds_of(Setup()) < FULL.seconds_of(Setup()) == 600
    assert QUICK.relative > FULL.relative == 0.1
    assert QUICK.points > FULL.points == 3.0


def test_a_run_stops_with_the_arrivals_unless_it_is_drained() -> None:
    size = type(QUICK)(minutes=0.1, traces=2)
    stopped = At(Setup(), 3.0).run(size)
    (drained,) = At(Setup(), 3.0, drain=True).run(size)
    assert [one.finished < one.requests for one in stopped] == [True, True]
    assert stopped[0].requests != stopped[1].requests  # another trace
    assert drained.finished == drained.requests == stopped[0].requests
    assert 0.02 < drained.normalized_latency < 1
