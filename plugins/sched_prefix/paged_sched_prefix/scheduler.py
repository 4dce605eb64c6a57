"""PrefixScheduler: running groups first, then preempted ones, then newcomers by what the cache holds of them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from paged_core.scheduling.running_first import RunningFirst, age

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_core.api.request import Group
    from paged_core.api.scheduler import SchedulerNeed, View
    from paged_sched_prefix import PrefixSettings

_OVERTAKEN = "sched_prefix.overtaken"  # note: how many later arrivals entered before this group


class PrefixScheduler(RunningFirst):
    """Longest cached prefix first, within limits. See the README for the rules and why each is there."""

    def __init__(self, need: SchedulerNeed, settings: PrefixSettings) -> None:
        super().__init__(need, settings.watermark)
        self._max_overtakes = settings.max_overtakes
        self._window = settings.window
        self._block_size = need.block_size

    def line(self, view: View) -> Iterator[Group]:
        """Preempted groups by age, then waiting ones; asking for the next means that the last one entered."""
        yield from sorted(view.preempted, key=age)
        waiting = list(islice(view.waiting, self._window))
        hits = {group: (group.gap - view.scratch.gap(group)) // self._block_size for group in waiting}
        while waiting:
            late = (group for group in waiting if _num_overtaken(group) >= self._max_overtakes)
            chosen = next(late, None) or max(waiting, key=hits.__getitem__)  # of equals the first, who came first
            place = waiting.index(chosen)
            yield chosen
            for group in waiting[:place]:
                group.notes[_OVERTAKEN] = _num_overtaken(group) + 1
            del waiting[place]


def _num_overtaken(group: Group) -> int:
    count = group.notes.get(_OVERTAKEN, 0)
    return count if isinstance(count, int) else 0
