"""PriorityScheduler: the most urgent first; the less urgent leave when there is no room for the more urgent."""

from __future__ import annotations

from heapq import heapify, heappop
from typing import TYPE_CHECKING

from paged_core.scheduling.remaining import Remaining
from paged_core.scheduling.running_first import RunningFirst, age

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_core.api.request import Group
    from paged_core.api.scheduler import Decision, SchedulerNeed, View
    from paged_sched_priority import PrioritySettings


class PriorityScheduler(RunningFirst):
    """By priority, with ageing. See the README for the rules and why nobody starves."""

    def __init__(self, need: SchedulerNeed, settings: PrioritySettings) -> None:
        super().__init__(need, settings.watermark)
        self._ageing_s = settings.ageing_s
        self._block_size = need.block_size

    def decide(self, view: View) -> Decision:
        """Displace if somebody more urgent cannot enter otherwise; then as for any policy that serves running first."""
        displaced = self._displace(view)
        plan = super().decide(Remaining(view, displaced) if displaced else view)
        plan.preempt[:0] = displaced
        return plan

    def rank(self, group: Group) -> tuple[float, int]:
        """Priority, less urgent the later it came. Both wait equally, so that time never changes an order."""
        arrival, order = age(group)
        return group.priority + arrival / self._ageing_s, order

    def line(self, view: View) -> Iterator[Group]:
        """Preempted and waiting groups by rank."""
        heap = [(self.rank(group), i, group) for i, group in enumerate((*view.preempted, *view.waiting))]
        heapify(heap)
        while heap:
            yield heappop(heap)[2]

    def _displace(self, view: View) -> list[Group]:
        """Running groups of lower priority, the least urgent first, as many as it takes for the first in line."""
        urgent = min((*view.preempted, *view.waiting), key=self.rank, default=None)
        if urgent is None:
            return []
        lower = [group for group in view.running if group.priority > urgent.priority]
        lower = sorted((group for group in lower if self.rank(group) > self.rank(urgent)), key=self.rank)
        lower = self._within_rows(view, lower)
        if not lower or not self._would_help(view, urgent, lower):
            return []
        victims: list[Group] = []
        while lower and self._lacks_room(Remaining(view, victims), urgent):
            victims.append(lower.pop())
            view.scratch.give_back(victims[-1])
        return victims

    def _within_rows(self, view: View, lower: list[Group]) -> list[Group]:
        """Those of `lower`, least urgent last, whose rows can be kept: victims and returners have `max_num_seqs`."""
        left = view.max_num_seqs - sum(group.num_reserved_rows for group in view.preempted)
        for i in range(len(lower) - 1, -1, -1):
            left -= lower[i].num_reserved_rows
            if left < 0:
                return lower[i + 1 :]
        return lower

    def _would_help(self, view: View, urgent: Group, lower: list[Group]) -> bool:
        """Whether `urgent` could enter if all of `lower` left, as far as that can be known before they do."""
        rows = view.num_free_seqs + sum(group.num_reserved_rows for group in lower)
        held = sum(-(-seq.num_computed // self._block_size) for group in lower for seq in group.live)
        need = view.scratch.need(urgent, view.scratch.gap(urgent))
        return urgent.num_reserved_rows <= rows and need <= view.scratch.free + held

    def _lacks_room(self, view: View, urgent: Group) -> bool:
        """Whether `urgent` could not enter beside those who run."""
        if urgent.num_reserved_rows > view.num_free_seqs:
            return True
        need = view.scratch.need(urgent, view.scratch.gap(urgent))
        if not view.running:
            return need > view.scratch.free
        need += self.later(urgent) + self.promised(view) + int(self._watermark * view.scratch.total)
        need += sum(view.scratch.need(group, view.scratch.gap(group)) for group in view.prefilling)
        return need + view.scratch.need_decodes() > view.scratch.free
