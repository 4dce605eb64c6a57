"""NoEvictScheduler: first come, first served, admitted only if all who run can run to their announced ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.scheduling.futures import blocks_to_come
from paged_core.scheduling.running_first import RunningFirst, first_come

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_core.api.request import Group
    from paged_core.api.scheduler import SchedulerNeed, View


class NoEvictScheduler(RunningFirst):
    """GUARANTEED_NO_EVICT. See the README for the rule and why it holds."""

    def __init__(self, need: SchedulerNeed) -> None:
        super().__init__(need, watermark=0.0)
        self._block_size, self._max_len = need.block_size, need.max_len

    def line(self, view: View) -> Iterable[Group]:
        """As they came."""
        return first_come(view)

    def later(self, group: Group) -> int:
        """Blocks up to the announced end of every branch."""
        return blocks_to_come(group, self._block_size, self._max_len)

    def promised(self, view: View) -> int:
        """The same of all who run."""
        return sum(map(self.later, view.running))
