"""CpuPressure: notices that other processes hold the cores this one computes on.

During a step the calling thread always has work, so on a machine of its own it gets all of the time. What it does not
get, others did. With several threads a step waits at every barrier for the slowest of them, which then costs far more
than the share that others take: four busy processes on two cores made a step of two threads ten times as long as that
of one (24 s against 2 s for 60 tokens).
"""

from __future__ import annotations

import logging

news = logging.getLogger("paged_core.news")

ENOUGH_S = 5.0
"""Time in steps over which a share is judged."""
FAIR = 0.75


class CpuPressure:
    """Adds up steps; says once, on `news`, when the cores were shared for `ENOUGH_S` of them."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._elapsed_s = self._cpu_s = 0.0
        self._was_told = False

    def add(self, elapsed_s: float, cpu_s: float) -> None:
        """A step took `elapsed_s`, of which the calling thread ran `cpu_s`."""
        self._elapsed_s += elapsed_s
        self._cpu_s += cpu_s
        if self._elapsed_s < ENOUGH_S:
            return
        share = self._cpu_s / self._elapsed_s
        self._elapsed_s = self._cpu_s = 0.0
        if share < FAIR and not self._was_told:
            self._was_told = True
            hint = "; with --threads=1 a step waits for nobody else's" if self._num_threads > 1 else ""
            news.info("other processes are using the cores: steps ran %.0f %% of their time%s", 100 * share, hint)
