"""StaticScheduler: a batch is formed when nobody runs, and nobody joins it once it is complete."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paged_core.api.request import GroupState
from paged_core.scheduling.running_first import RunningFirst, age

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_core.api.request import Group
    from paged_core.api.scheduler import Decision, SchedulerNeed, View
    from paged_sched_static import StaticSettings


class StaticScheduler(RunningFirst):
    """The scheduling of FasterTransformer's users (paper, section 6.1). See the README for the rules."""

    def __init__(self, need: SchedulerNeed, settings: StaticSettings) -> None:
        super().__init__(replace(need, chunked_prefill=False), settings.watermark)
        self._batch_size = settings.batch_size
        self._forming = False

    def decide(self, view: View) -> Decision:
        """The batch's next step; its first ones take in whom it has room for."""
        if not (view.running or view.preempted):
            self._forming = True
        plan = super().decide(view)
        if self._forming:
            self._forming = self._stopped_by_budget(view, plan)
        return plan

    def line(self, view: View) -> Iterator[Group]:
        """Preempted members, which are still of the batch; waiting groups while it is being formed."""
        yield from sorted(view.preempted, key=age)
        size = len(view.running) + len(view.preempted)
        for group in view.waiting if self._forming else ():
            if self._batch_size and size >= self._batch_size:
                return
            yield group
            size += 1

    def _stopped_by_budget(self, view: View, plan: Decision) -> bool:
        """Whether the next in line did not enter for want of tokens alone: then it joins with the next step."""
        joined = {run.group for run in plan.run if run.group.state is GroupState.WAITING}
        size = len(view.running) + len(view.preempted) + len(joined)
        head = next((group for group in view.waiting if group not in joined), None)
        if head is None or (self._batch_size and size >= self._batch_size):
            return False
        num_tokens = sum(run.num_tokens for run in plan.run) + (view.num_decode_tokens if plan.decode_all else 0)
        return view.scratch.gap(head) > view.token_budget - num_tokens
