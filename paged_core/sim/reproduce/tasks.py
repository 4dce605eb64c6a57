"""Tasks: runs that need nothing of each other, so that processes share them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.sim.capacity import LIMIT_S, search
from paged_core.sim.reproduce.load import arrivals
from paged_core.sim.reproduce.measure import Measured, measured
from paged_core.sim.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.sim.reproduce.setup import Setup

TOP_S = 0.9
"""Highest normalized latency at which curves are read."""
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How much to run, and how far what is found may lie from the paper.

    minutes    of virtual arrivals
    traces     a run at one rate is the mean over so many traces
    precision  share of a rate within which the knee of a curve is bracketed, before interpolation
    quick      fewer variants
    relative   share of the paper's values; points: of percentages of blocks saved
    """

    minutes: float = 10.0
    traces: int = 4
    precision: float = 0.1
    quick: bool = False
    relative: float = 0.1
    points: float = 3.0

    def seconds_of(self, setup: Setup) -> float:
        """Seconds of arrivals. Less of short requests, which come ten times as fast; of OPT-175B, as in the paper; of
        beams, which cost most."""
        share = 1.0 if setup.lengths == "sharegpt" else 0.25
        share *= (0.5 if setup.model == "opt-175b" else 1.0) * (0.25 if setup.mode == "beam" else 1.0)
        return 60 * self.minutes * share

    def traces_of(self, setup: Setup) -> int:
        """Traces of a run at one rate; one of beams."""
        return 1 if setup.mode == "beam" else self.traces


FULL = Size()
# In 90 s at 2 requests a second the pool of vLLM is not full yet: 69 % tokens instead of 92.
QUICK = Size(minutes=1.5, traces=1, precision=0.5, quick=True, relative=0.3, points=6.0)


@dataclass(frozen=True, slots=True)
class At:
    """Runs at one rate, one a trace. Stopped when the arrivals end, for averages over steps need no more; or when all
    is answered (`drain`), which latencies need."""

    setup: Setup
    rate: float
    drain: bool = False

    @property
    def key(self) -> str:
        """Unique among tasks."""
        return f"{self.setup.name} @ {self.rate:g}{' drained' if self.drain else ''}"

    def run(self, size: Size) -> list[Measured]:
        """One measurement a trace."""
        traces = 1 if self.drain else size.traces_of(self.setup)
        return [_run(self.setup, self.rate, size, seed, drain=self.drain) for seed in range(traces)]


@dataclass(frozen=True, slots=True)
class Curve:
    """Normalized latency over rate, around the rate at which it explodes; every run goes on until all is answered.

    `first`: the rate tried first, a guess that costs time when it is far off.
    """

    setup: Setup
    first: float

    @property
    def key(self) -> str:
        """Unique among tasks."""
        return f"{self.setup.name} curve"

    def run(self, size: Size) -> list[Measured]:
        """Measurements by rising rate."""
        top_s = LIMIT_S if size.quick else TOP_S
        return walk(lambda rate: _run(self.setup, rate, size, 0, drain=True), self.first, size.precision, top_s)


Task = At | Curve


def walk(run: Callable[[float], Measured], first: float, precision: float, top_s: float) -> list[Measured]:
    """Points of a curve by rising rate: around the threshold (`search`), and one whose latency is above `top_s`."""
    points: dict[float, Measured] = {}

    def latency(rate: float) -> float:
        points[rate] = run(rate)
        return points[rate].normalized_latency

    search(latency, first, LIMIT_S, precision)
    for _ in range(_MOST_DOUBLINGS):
        if points[max(points)].normalized_latency > top_s:
            break
        latency(2 * max(points))
    return [points[rate] for rate in sorted(points)]


def _run(setup: Setup, rate: float, size: Size, seed: int, *, drain: bool) -> Measured:
    seconds = size.seconds_of(setup)
    requests = arrivals(setup.lengths, rate, seconds, seed)
    until = None if drain else seconds
    outcome = simulate(setup.system(), requests, sampling=setup.sampling(), until=until, seed=seed)
    found = measured(outcome, rate, seconds)
    if drain and math.isnan(found.normalized_latency):
        raise RuntimeError(f"{setup.name} at {rate:g} req/s: {found.finished} of {found.requests} requests ended")
    return found
