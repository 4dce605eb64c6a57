"""Verdicts: a figure of the paper, ours beside it, how far apart they may be, and whether they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

Verdict = Literal["reproduced", "missed", "printed only"]
Unit = Literal["", "%", "x", "req/s", "ms"]


class Tolerance(Protocol):
    """What a value is held to."""

    def holds(self, ours: float) -> bool:
        """Whether `ours` is within; never for a value that is not a number."""
        ...

    def text(self, unit: Unit) -> str:
        """For the table."""
        ...


@dataclass(frozen=True, slots=True)
class Relative:
    """Within a share of the paper's value, either way; or within `least`, in the value's unit, where that is wider."""

    paper: float
    share: float
    least: float = 0.0

    def holds(self, ours: float) -> bool:
        """|ours - paper| <= share x paper, or <= least."""
        return abs(ours - self.paper) <= max(self.share * abs(self.paper), self.least)

    def text(self, unit: Unit) -> str:
        """As `+-10 %`, or `+-2 points` where that is wider."""
        if self.least > self.share * abs(self.paper):
            return f"±{self.least:g} points"
        return f"±{self.share:.0%}".replace("%", " %")


@dataclass(frozen=True, slots=True)
class Points:
    """Within a number of percentage points of the paper's value (all in percent)."""

    paper: float
    points: float

    def holds(self, ours: float) -> bool:
        """|ours - paper| <= points."""
        return abs(ours - self.paper) <= self.points

    def text(self, unit: Unit) -> str:
        """As `+-3 points`."""
        return f"±{self.points:g} points"


@dataclass(frozen=True, slots=True)
class Interval:
    """In an interval, widened at both ends by a share of each end. An infinite end bounds nothing."""

    low: float
    high: float
    slack: float = 0.0

    def holds(self, ours: float) -> bool:
        """low x (1 - slack) <= ours <= high x (1 + slack)."""
        return self.low * (1 - self.slack) <= ours <= self.high * (1 + self.slack)

    def text(self, unit: Unit) -> str:
        """As `1.7x to 2.7x, ±10 % at the ends`."""
        low, high = shown(self.low, unit), shown(self.high, unit)
        if self.low == self.high:
            inside = low
        elif math.isinf(self.high):
            inside = f"at least {low}"
        elif self.low <= 0:
            inside = f"at most {high}"
        else:
            inside = f"{low} to {high}"
        return inside + (f", ±{self.slack:.0%} at the ends".replace("%", " %") if self.slack else "")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    claim      its number in the list of claims, or `control`
    what       what was measured
    paper      the paper's value as text; empty where it gives none
    ours       the value found, in `unit` (percent as 20.4)
    tolerance  None: there is nothing to hold the value against
    required   whether a miss is a fault of the reproduction; others are shown with their verdict
    """

    claim: str
    what: str
    paper: str
    ours: float
    unit: Unit = ""
    tolerance: Tolerance | None = None
    required: bool = False

    @property
    def verdict(self) -> Verdict:
        """Whether the value holds."""
        if self.tolerance is None:
            return "printed only"
        return "reproduced" if self.tolerance.holds(self.ours) else "missed"

    @property
    def tolerance_text(self) -> str:
        """What it is held to; a dash when to nothing."""
        return "-" if self.tolerance is None else self.tolerance.text(self.unit)


def shown(value: float, unit: Unit = "") -> str:
    """A value with its unit, three or four digits; a dash for one that is not a number."""
    if math.isnan(value):
        return "-"
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 or unit == "%" else 2
    return f"{value:.{places}f}{'' if unit in ('x', '') else ' '}{unit}"
