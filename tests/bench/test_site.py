"""Timers of a device, repeated actions, memory; on an accelerator that is made up."""

from __future__ import annotations

import dataclasses

import pytest

from paged_core.bench.site import enough, repeated, site_of
from paged_core.bench.timing import event_timer, idle_timer, measure


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.device.said.append("record")
        self.at = self.device.now

    def synchronize(self) -> None:
        self.device.said.append("wait")

    def seconds_since(self, earlier: Event) -> float:
        return self.at - earlier.at


class Device:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []

    def event(self, *, timed: bool = False) -> Event:
        assert timed
        return Event(self)

    def synchronize(self) -> None:
        self.said.append("idle")

    def work(self) -> None:
        self.said.append("work")
        self.now += 0.125


def test_events_stand_around_the_work_and_the_last_is_waited_for() -> None:
    device = Device()
    assert event_timer(device)(device.work) == 0.125  # type: ignore[arg-type]
    assert device.said == ["record", "work", "record", "wait"]


def test_the_other_clock_runs_from_idle_to_idle() -> None:
    device = Device()
    assert idle_timer(device)(device.work) >= 0  # type: ignore[arg-type]
    assert device.said == ["idle", "work", "idle"]


def test_a_timer_takes_the_place_of_a_clocks_name() -> None:
    device = Device()
    found = measure(device.work, 3, warmups=0, clock=event_timer(device))  # type: ignore[arg-type]
    assert found.samples == (0.125,) * 3


def test_short_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    site = dataclasses.replace(site_of("cpu"), sample_s=0.01)
    assert [enough(seconds, site) for seconds in (1.0, 0.005, 0.001, 1e-9)] == [1, 2, 10, 100]
    calls: list[int] = []
    repeated(lambda: calls.append(1), 7)()
    assert len(calls) == 7


def test_a_cpu_captures_nothing() -> None:
    site = site_of("cpu", "cpu")
    action = Device().work
    assert site.captured(action) == action
    assert site.kind == "cpu"


@pytest.mark.gpu
def test_a_gpus_site_times_and_captures() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    site = site_of("cuda")
    one = torch.ones(1 << 20, device=site.device)
    out = torch.empty_like(one)

    def work() -> None:
        torch.add(one, 1, out=out)

    work()
    assert 0 < measure(site.captured(work), 3, clock=site.timer).median < 1
    assert (out == 2).all()
    assert site.rotation >= 256 << 20
    assert site.memory > 0
