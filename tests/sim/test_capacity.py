"""Capacity: crossings of a curve, and the search for one."""

from __future__ import annotations

import math

import pytest

from paged_core.sim.capacity import Capacity, capacity, search


def test_a_crossing_lies_between_its_neighbours_on_a_curve_that_grows_exponentially() -> None:
    points = [(4.0, 8.0), (1.0, 0.05), (2.0, 0.1), (3.0, 2.5)]
    found = capacity(points, 0.5)
    assert found.bound == ""
    assert found.rate == pytest.approx(2.5)  # 0.1 -> 0.5 -> 2.5 by factors of five


def test_rates_that_do_not_reach_the_limit_give_a_bound() -> None:
    assert str(capacity([(1.0, 0.1), (2.0, 0.2)], 0.5)) == "at least 2"
    assert str(capacity([(1.0, 0.9), (2.0, 1.2)], 0.5)) == "below 1"
    with pytest.raises(ValueError, match="no rate"):
        capacity([])


def test_the_first_crossing_counts_even_if_the_curve_comes_back() -> None:
    assert capacity([(1.0, 0.1), (2.0, 2.5), (3.0, 0.1), (4.0, 9.0)], 0.5).rate == pytest.approx(1.5)


def test_a_rate_at_the_limit_is_within_it_and_one_without_answers_is_not() -> None:
    assert capacity([(1.0, 0.5), (2.0, 1.0)], 0.5) == Capacity(1.0)
    assert capacity([(1.0, 0.1), (2.0, math.inf)], 0.5) == Capacity(1.0)
    assert capacity([(1.0, 0.0), (2.0, 1.0)], 0.5) == Capacity(1.0)
    assert capacity([(1.0, 0.1), (math.inf, 9.0)], 0.5) == Capacity(1.0)


@pytest.mark.parametrize("knee", [0.013, 0.9, 1.0, 77.0])
@pytest.mark.parametrize("first", [0.5, 8.0])
def test_a_search_finds_the_knee_to_its_precision_in_few_tries(knee: float, first: float) -> None:
    asked: list[float] = []

    def latency(rate: float) -> float:
        asked.append(rate)
        return 0.05 / (1 - rate / knee) if rate < knee else math.inf

    found, tried = search(latency, first)
    assert found.bound == ""
    assert found.rate == pytest.approx(0.9 * knee, rel=0.021)
    assert sorted(asked) == [rate for rate, _ in tried]
    assert len(asked) <= 18


@pytest.mark.parametrize(("latency", "bound"), [(0.0, "at least"), (math.inf, "below")])
def test_a_search_without_an_end_gives_up_with_a_bound(latency: float, bound: str) -> None:
    found, tried = search(lambda rate: latency, 1.0)
    assert found.bound == bound
    assert len(tried) == 21


def test_a_search_tries_nothing_slower_than_it_may_and_anything_faster() -> None:
    found, tried = search(lambda rate: math.inf, 8.0, slowest=3.0)
    assert (str(found), [rate for rate, _ in tried]) == ("below 4", [4.0, 8.0])
    found, _ = search(lambda rate: 1.0 if rate > 5 else 0.1, 1.0, slowest=3.0)
    assert found.bound == ""
    assert found.rate == pytest.approx(5.0, abs=0.15)
