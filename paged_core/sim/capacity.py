"""Capacity: the largest rate of requests that a system serves below a limit of latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paged_core.sim.measures import Measures

LIMIT_S = 0.5
"""Normalized latency, seconds a token, at which the paper's curves are read: where they have left the ground."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """What "served" means: a mean normalized latency of `limit_s` seconds a token at most, and of the requests a share
    of `good` within the SLO where there is one."""

    limit_s: float = LIMIT_S
    good: float = 0.9

    def latency(self, measures: Measures) -> float:
        """Seconds a token; infinite where too few keep the SLO."""
        share = measures.good_share
        return measures.latency if share is None or share >= self.good else math.inf


@dataclass(frozen=True, slots=True)
class Capacity:
    """`rate` requests a second, or only that it is "at least" or "below" that: the rates tried do not reach it."""

    rate: float
    bound: Literal["", "at least", "below"] = ""

    def __str__(self) -> str:
        return f"{self.bound} {self.rate:.3g}".strip()


def capacity(points: Iterable[tuple[float, float]], limit: float = LIMIT_S) -> Capacity:
    """Where (rate, latency) first passes `limit`, latency taken to grow exponentially between neighbouring rates.

    The slower of the two where nothing can be said about what is between: one of the rates or latencies is infinite.
    ValueError without points.
    """
    known = sorted(points)
    if not known:
        raise ValueError("no rate was tried")
    if known[0][1] > limit:
        return Capacity(known[0][0], "below")
    for (slow, low), (fast, high) in pairwise(known):
        if high > limit:
            if not 0 < low < limit or math.isinf(high) or math.isinf(fast):
                return Capacity(slow)
            return Capacity(slow + math.log(limit / low) / math.log(high / low) * (fast - slow))
    return Capacity(known[-1][0], "at least")


def search(
    latency: Callable[[float], float],
    first: float,
    limit: float = LIMIT_S,
    precision: float = 0.02,
    slowest: float = 0.0,
) -> tuple[Capacity, list[tuple[float, float]]]:
    """The capacity by trying rates, `first` being a guess, and every (rate, latency) tried: doubling or halving until
    it is between two of them, then halving the interval until that is `precision` of its lower end.

    Gives up, with a bound, after a factor of about a million either way, or where it would try less than `slowest`.
    """
    tried = {first: latency(first)}
    factor = 2.0 if tried[first] <= limit else 0.5
    rate = first
    for _ in range(20):
        rate *= factor
        if factor < 1 and rate < slowest:
            break
        tried[rate] = latency(rate)
        if (tried[rate] <= limit) != (factor > 1):
            break
    found = capacity(tried.items(), limit)
    while not found.bound:
        low = max(one for one in tried if one <= found.rate)
        high = min(one for one in tried if one > found.rate)
        if high - low <= precision * low:
            break
        middle = (low + high) / 2
        tried[middle] = latency(middle)
        found = capacity(tried.items(), limit)
    return found, sorted(tried.items())
