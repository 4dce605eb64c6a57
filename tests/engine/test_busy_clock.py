"""BusyClock: time is what its source counts, and idle time is jumped over."""

from __future__ import annotations

import pytest

from paged_core.engine.clock import BusyClock


class Source:
    """Counts when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_work_takes_what_the_source_counts() -> None:
    source = Source()
    clock = BusyClock(source)
    assert clock.now() == 0
    source.seconds += 2.5
    clock.advance(99.0)  # the source has counted it
    assert clock.now() == 2.5


def test_waiting_takes_no_time_of_the_source() -> None:
    source = Source()
    clock = BusyClock(source)
    source.seconds += 1
    clock.sleep_until(10.0)
    assert clock.now() == pytest.approx(10.0)
    source.seconds += 1
    clock.sleep_until(5.0)  # past
    assert clock.now() == pytest.approx(11.0)
