"""Rounds in turns, ratios of neighbours."""

from __future__ import annotations

import time

import pytest

from paged_core.bench.timing import Measurement, alternate, measure, ratio


def test_contestants_take_turns_and_the_order_reverses() -> None:
    calls: list[str] = []
    lines: list[str] = []
    times = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, lines.append)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert [len(times[name].samples) for name in "ab"] == [3, 3]
    assert len(lines) == 6


def test_warmups_are_not_samples() -> None:
    calls: list[int] = []
    assert len(measure(lambda: calls.append(1), 2, warmups=3).samples) == 2
    assert len(calls) == 5


def test_ratio_pairs_neighbours_in_time() -> None:
    slow, fast = Measurement((4.0, 8.0, 6.0)), Measurement((2.0, 2.0, 3.0))
    assert ratio(slow, fast).samples == (2.0, 4.0, 2.0)
    assert ratio(slow, fast).median == 2.0


def test_a_measurement_summarises_its_samples() -> None:
    seconds = Measurement((4.0, 1.0, 2.0))
    assert (seconds.median, seconds.best) == (2.0, 1.0)
    assert seconds.spread == pytest.approx(1.5)
    assert seconds.over(8.0, "tokens/s") == Measurement((2.0, 8.0, 4.0), "tokens/s")


def test_processor_time_does_not_count_waiting() -> None:
    times = alternate({"nap": lambda: time.sleep(0.2)}, 1, clock="cpu")
    assert times["nap"].median < 0.2
