"""The clocks: the machine's, a virtual one, and one that skips idle time. All satisfy `paged_core.api.clock.Clock`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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


class BusyClock:
    """What work takes, by `source`; nobody waits: an idle engine's time is jumped over.

    With `time.perf_counter` it is wall time while there is work. With `time.process_time` it is this process's own
    processor time, which neighbours on the machine do not lengthen; it is wall time only on one thread.
    """

    def __init__(self, source: Callable[[], float]) -> None:
        self._source = source
        self._begin = source()
        self._jumped = 0.0

    def now(self) -> float:
        """Seconds since the clock was made, jumps included."""
        return self._source() - self._begin + self._jumped

    def sleep_until(self, deadline: float) -> None:
        """Jump to `deadline` if it lies ahead."""
        self._jumped += max(0.0, deadline - self.now())

    def advance(self, elapsed_s: float) -> None:
        """Nothing to do: the source has counted the step."""
