"""MaxUtilizationScheduler: first come, first served, admitted as soon as the prompt fits; the newest pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.scheduling.running_first import RunningFirst, first_come

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_core.api.request import Group
    from paged_core.api.scheduler import SchedulerNeed, View


class MaxUtilizationScheduler(RunningFirst):
    """MAX_UTILIZATION: no watermark. See the README."""

    def __init__(self, need: SchedulerNeed) -> None:
        super().__init__(need, watermark=0.0)

    def line(self, view: View) -> Iterable[Group]:
        """Paused groups by age, then newcomers as they came."""
        return first_come(view)
