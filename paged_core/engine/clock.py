"""The two clocks: the machine's, and a virtual one for simulation. Both satisfy `paged_core.api.clock.Clock`."""

from __future__ import annotations

import time


class RealClock:
    """Monotone wall time."""

    def now(self) -> float:
        """Seconds since an arbitrary origin."""
        return time.monotonic()

    def sleep_until(self, deadline: float) -> None:
        """Sleep until `deadline`; returns at once when it has passed."""
        delay = deadline - time.monotonic()
        if delay > 0:
            time.sleep(delay)

    def advance(self, elapsed_s: float) -> None:
        """Nothing to do: real time passes by itself."""


class VirtualClock:
    """Time that moves only when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since the clock's start value."""
        return self._now

    def sleep_until(self, deadline: float) -> None:
        """Jump to `deadline` if it lies ahead."""
        self._now = max(self._now, deadline)

    def advance(self, elapsed_s: float) -> None:
        """Move ahead by `elapsed_s` >= 0 seconds."""
        if elapsed_s < 0:
            raise ValueError(f"time does not run backwards: advance({elapsed_s})")
        self._now += elapsed_s
