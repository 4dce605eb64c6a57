"""Time, as the engine sees it: seconds on one monotone clock, so that a simulator can run on a virtual one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The only source of time for scheduling, deadlines, ageing and metrics. Implementations: engine/clock.py."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never decreases."""
        ...

    def sleep_until(self, deadline: float) -> None:
        """Return no earlier than `deadline` (seconds on this clock). An idle engine calls it."""
        ...

    def advance(self, elapsed_s: float) -> None:
        """Account for a step that took `elapsed_s`: moves a virtual clock, does nothing on a real one."""
        ...
