"""Timing: rounds of several contestants, taken in turns so that a noisy minute hits them all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.device.stream import Accelerator

Key = TypeVar("Key")
Timer = Callable[[Callable[[], object]], float]
"""Calls an action and says how many seconds it took."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Samples of one quantity, one a round. `unit` is what they are in."""

    samples: tuple[float, ...]
    unit: str = "s"

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        """The least sample."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """(largest - least) / median: how far to trust the median."""
        return (max(self.samples) - self.best) / self.median

    def each(self, count: int) -> Measurement:
        """One of the `count` equal parts of every sample."""
        return Measurement(tuple(sample / count for sample in self.samples), self.unit)

    def over(self, amount: float, unit: str) -> Measurement:
        """`amount` per sample: tokens over seconds are tokens/s."""
        return Measurement(tuple(amount / sample for sample in self.samples), unit)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""`cpu` counts all threads of this process and nothing of others: for one thread on a busy machine."""


def event_timer(device: Accelerator) -> Timer:
    """Seconds between two events around what an action gives the device's current stream, on the device's clock.

    Work of other streams is not seen. Where the host is slower at giving work than the device at doing it, the host's
    time is what is measured: capture the work.
    """

    def seconds(action: Callable[[], object]) -> float:
        begin, end = device.event(timed=True), device.event(timed=True)
        begin.record()
        action()
        end.record()
        end.synchronize()
        return end.seconds_since(begin)

    return seconds


def idle_timer(device: Accelerator) -> Timer:
    """Seconds on the host's clock from an idle device to an idle device: of all streams, and of the host itself."""

    def seconds(action: Callable[[], object]) -> float:
        device.synchronize()
        begin = CLOCKS["wall"]()
        action()
        device.synchronize()
        return CLOCKS["wall"]() - begin

    return seconds


def measure(action: Callable[[], object], rounds: int, warmups: int = 1, clock: str | Timer = "wall") -> Measurement:
    """Seconds of `action` by one of `CLOCKS` or by a timer, called `warmups` times without a clock first."""
    timer = timer_of(clock)
    for _ in range(warmups):
        action()
    return Measurement(tuple(timer(action) for _ in range(rounds)))


def alternate(
    actions: Mapping[Key, Callable[[], object]],
    rounds: int,
    progress: Callable[[str], None] = lambda line: None,
    clock: str | Timer = "wall",
) -> dict[Key, Measurement]:
    """Seconds of every action, one of each a round, the order reversed every other round. Warm-ups are the caller's.

    `progress` hears one line a sample; `clock` is one of `CLOCKS` or a timer.
    """
    timer = timer_of(clock)
    samples: dict[Key, list[float]] = {name: [] for name in actions}
    for i in range(rounds):
        for name in list(actions)[:: 1 if i % 2 == 0 else -1]:
            seconds = timer(actions[name])
            samples[name].append(seconds)
            progress(f"round {i + 1} of {rounds}, {name}: {seconds:.2f} s")
    return {name: Measurement(tuple(values)) for name, values in samples.items()}


def ratio(upper: Measurement, lower: Measurement) -> Measurement:
    """Round by round, `upper` / `lower`: pairs of neighbours in time."""
    pairs = zip(upper.samples, lower.samples, strict=True)
    return Measurement(tuple(a / b for a, b in pairs), "x")


def timer_of(clock: str | Timer) -> Timer:
    """The timer by one of `CLOCKS`; a timer is itself."""
    return partial(_seconds, CLOCKS[clock]) if isinstance(clock, str) else clock


def _seconds(clock: Callable[[], float], action: Callable[[], object]) -> float:
    begin = clock()
    action()
    return clock() - begin
