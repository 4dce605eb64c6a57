"""Lengths: how long past answers became, and from that how long one that runs will be."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

_GOLDEN = 0.6180339887498949  # the fraction whose multiples spread most evenly over 0 .. 1


class Lengths:
    """The lengths of the last `window` answers that ended by themselves or at their limit."""

    def __init__(self, window: int) -> None:
        self._recent: deque[int] = deque(maxlen=window)
        self._ordered: list[int] = []
        self._quantile = 0.5

    def add(self, length: int) -> None:
        """One more; the oldest is forgotten when the window is full."""
        if len(self._recent) == self._recent.maxlen:
            del self._ordered[bisect_right(self._ordered, self._recent[0]) - 1]
        self._recent.append(length)
        insort(self._ordered, length)

    def next_quantile(self) -> float:
        """Where in the distribution the next request shall lie: evenly spread instead of drawn, so that runs repeat."""
        self._quantile = (self._quantile + _GOLDEN) % 1.0
        return self._quantile

    def predict(self, given: int, limit: int, quantile: float) -> int:
        """The length of an answer that has `given` tokens already and may have `limit`.

        The quantile of those remembered that became longer than `given`; the limit when none did.
        """
        shorter = bisect_right(self._ordered, given)
        longer = len(self._ordered) - shorter
        return min(limit, self._ordered[shorter + int(quantile * longer)]) if longer else limit
