"""Measures of one simulated run: what the paper's figures show of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.sim.measures import Window, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.sim.outcome import Outcome

WARM = 0.1
"""Share of a trace that averages over steps leave out: the pool fills up then."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run in numbers; averages are over the time of steps from `WARM` of the trace to its end, shares of the pool.

    rate                 requests a second
    requests, finished   of the trace, and those answered before the run was stopped
    normalized_latency   seconds a token: mean over requests of (end - arrival) / output tokens; NaN unless all finished
    batched              requests running
    token, reserved      slots that hold a token; slots that a running request will fill later
    internal             slots that are kept for a request and never filled
    saved                blocks that sharing spares over blocks without sharing
    tail                 empty slots of blocks in use over slots of blocks in use
    preemptions          victims
    served               requests finished a second, after the warm-up
    """

    rate: float
    requests: int
    finished: int
    normalized_latency: float
    batched: float
    token: float
    reserved: float
    internal: float
    saved: float
    tail: float
    preemptions: int
    served: float

    @property
    def other(self) -> float:
        """Slots that belong to nobody, or that rounding of the allocator lost."""
        return 1 - self.token - self.reserved - self.internal

    def as_json(self) -> dict[str, Any]:
        """Numbers rounded to six significant digits, None for what is not a number."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Measured:
        """What `as_json` wrote."""
        numbers: dict[str, Any] = {name: math.nan if value is None else value for name, value in written.items()}
        return cls(**numbers)


def measured(outcome: Outcome, rate: float, seconds: float) -> Measured:
    """The numbers of a run of a trace of `seconds`."""
    requests, steps = outcome.requests, outcome.steps
    window = Window(WARM * seconds, seconds)
    found = measure(outcome, window=window)
    used = float(np.dot(steps.used_slots, window.weights(steps)))
    filled = float(np.dot(steps.token_slots, window.weights(steps)))
    finished = int(requests.finished.sum())
    busy = found.busy or math.nan
    return Measured(
        rate=rate,
        requests=len(requests),
        finished=finished,
        normalized_latency=float(requests.normalized_latency_s.mean()) if finished == len(requests) > 0 else math.nan,
        batched=found.batch / busy,
        token=found.memory.token / busy,
        reserved=found.memory.reserved / busy,
        internal=found.memory.internal / busy,
        saved=found.saved,
        tail=(used - filled) / used if used else math.nan,
        preemptions=sum(outcome.preemptions.values()),
        served=found.requests_per_s,
    )


def _plain(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.6g}")
