"""Forced preemption and injected faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.api.scheduler import Decision, Scheduler, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.request import Group


class PreemptNow(Scheduler):
    """Wraps a scheduler; at every step for which `when(step, group)` says so, a running group is preempted instead.

    The victim is chosen before the wrapped scheduler plans; that step runs everyone else that decodes. An engine with a
    step in flight asks twice for one step; the second answer has the victims of the first that still run.
    """

    def __init__(self, inner: Scheduler, when: Callable[[int, Group], bool]) -> None:
        self._inner = inner
        self._when = when
        self._asked: tuple[int, list[Group]] = (-1, [])
        self.num_forced = 0

    def decide(self, view: View) -> Decision:
        """The forced victims, alone in their step, or the wrapped scheduler's decision."""
        step, victims = self._asked
        if step != view.step:
            victims = [group for group in view.running if self._when(view.step, group)]
            self.num_forced += len(victims)
        self._asked = view.step, victims
        victims = [group for group in victims if group in view.running]
        if not victims:
            return self._inner.decide(view)
        for group in victims:
            view.scratch.give_back(group)
        return Decision(preempt=victims, decode_all=view.scratch.take_decodes())

    def forget(self, group: Group) -> None:
        """Passed on."""
        self._inner.forget(group)


class FaultyExecutor(Executor):
    """Wraps an executor; `faults` maps a step number to the exception that step raises."""

    def __init__(self, inner: Executor, faults: Mapping[int, Exception]) -> None:
        self._inner = inner
        self._faults = faults

    def capacity(self) -> KVCapacity:
        """Passed on."""
        return self._inner.capacity()

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Passed on."""
        self._inner.start(num_blocks, num_host_blocks, tables)

    def submit(self, plan: StepPlan) -> Ticket:
        """Raise if this step is to fail."""
        if plan.step in self._faults:
            raise self._faults[plan.step]
        return self._inner.submit(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        """Passed on."""
        return self._inner.collect(ticket)

    def close(self) -> None:
        """Passed on."""
        self._inner.close()
