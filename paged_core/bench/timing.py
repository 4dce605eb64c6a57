"""Timing: rounds of several contestants, taken in turns so that a noisy minute hits them all alike."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


def measure(action: Callable[[], object], rounds: int, warmups: int = 1, clock: str = "wall") -> Measurement:
    """Seconds of `action` by one of `CLOCKS`, called `warmups` times without a clock first."""
    for _ in range(warmups):
        action()
    return Measurement(tuple(_seconds(action, CLOCKS[clock]) for _ in range(rounds)))


def alternate(
    actions: Mapping[str, Callable[[], object]],
    rounds: int,
    progress: Callable[[str], None] = lambda line: None,
    clock: str = "wall",
) -> dict[str, Measurement]:
    """Seconds of every action, one of each a round, the order reversed every other round. Warm-ups are the caller's.

    `progress` hears one line a sample; `clock` is one of `CLOCKS`.
    """
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for i in range(rounds):
        for name in list(actions)[:: 1 if i % 2 == 0 else -1]:
            seconds = _seconds(actions[name], CLOCKS[clock])
            samples[name].append(seconds)
            progress(f"round {i + 1} of {rounds}, {name}: {seconds:.2f} s")
    return {name: Measurement(tuple(values)) for name, values in samples.items()}


def ratio(upper: Measurement, lower: Measurement) -> Measurement:
    """Round by round, `upper` / `lower`: pairs of neighbours in time."""
    pairs = zip(upper.samples, lower.samples, strict=True)
    return Measurement(tuple(a / b for a, b in pairs), "x")


def _seconds(action: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    action()
    return clock() - begin
