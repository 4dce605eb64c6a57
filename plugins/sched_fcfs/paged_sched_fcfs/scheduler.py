"""FcfsScheduler: running groups first, then preempted ones, then newcomers; all in the order they came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.scheduling.running_first import RunningFirst, first_come

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_core.api.request import Group
    from paged_core.api.scheduler import View


class FcfsScheduler(RunningFirst):
    """First come, first served. See the README for the rules and why each is there."""

    def line(self, view: View) -> Iterable[Group]:
        """Preempted groups by age, then waiting ones as they came."""
        return first_come(view)
