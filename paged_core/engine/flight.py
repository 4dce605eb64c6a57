"""Steps in flight: submitted and not yet collected. What waits for them, and what may be planned while there are any.

An executor with `max_in_flight` 2 works on step N while the engine schedules and submits step N + 1. Three rules make
that sound, and this file holds all of them:

  A block freed while a step is in flight is not reused before it ends. What ends meanwhile (end token, stop string,
      length, abort, deadline, failure) leaves the queues at once, but its blocks and its table rows are given back when
      the last step submitted by then was collected. Allocators know nothing of this: they are asked to free later.
  What such a step still draws for them is stale: nobody hears of it.
  A step is planned ahead only if its plan follows from what is known (`may_lead`, `may_follow`). Otherwise the engine
      collects first and plans then, as it always does with `max_in_flight` 1, where nothing here ever waits.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.request import GroupState
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.api.allocator import Allocator
    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.request import Group, Sequence
    from paged_core.api.scheduler import Decision
    from paged_core.engine.queues import Queues


class Flight:
    """The plans in flight, oldest first, and what is given back when they end."""

    def __init__(self, queues: Queues, allocator: Allocator) -> None:
        self.plans: deque[StepPlan] = deque()
        self._queues = queues
        self._allocator = allocator
        self._later: deque[tuple[int, Callable[[], None]]] = deque()  # what to do once that step was collected
        self._stale: dict[int, int] = {}  # row that ended -> the last step that may draw for it
        self._bound: dict[str, Group] = {}

    def __bool__(self) -> bool:
        """Whether a step is in flight."""
        return bool(self.plans)

    # -- what may be planned --------------------------------------------------------------------------------------

    def may_lead(self, max_num_seqs: int) -> bool:
        """Whether another step may be planned now, with those in flight not collected.

        Not while a request runs whose plans depend on its tokens (`admitted`); nor while blocks move or prompt
        log-probabilities are on their way, whose books close when they arrive; nor when rows that wait to be given
        back could be missed.
        """
        if not self.plans:
            return True
        last = self.plans[-1]
        if last.copies or last.swap_out or last.swap_in or last.prompt_rows:
            return False
        if self._later and self._queues.num_free_rows < max_num_seqs:
            return False
        return not any(group.state is GroupState.RUNNING for group in self._bound.values())

    def may_follow(self, decision: Decision) -> bool:
        """Whether `decision` may be applied now. Nobody is preempted while a step is in flight: a victim's tokens may
        be on their way, and blocks that are free in a moment should cost no victim."""
        return not (self.plans and decision.preempt)

    def admitted(self, group: Group) -> None:
        """Beams are chosen by candidates; logits processors are told every token on the host and may force more."""
        params = group.request.params
        if params.use_beam_search or params.logits_processors:
            self._bound[group.id] = group

    # -- coming and going -----------------------------------------------------------------------------------------

    def submitted(self, plan: StepPlan) -> None:
        """`plan` is in flight from now on."""
        self.plans.append(plan)

    def collected(self, plan: StepPlan, result: StepResult) -> None:
        """`plan`, the oldest, has ended: take its stale draws out of `result`, give back what waited for it."""
        self.plans.popleft()
        if result.step != plan.step:
            raise PluginContractError(f"the executor answered step {result.step} when step {plan.step} was collected")
        if self._stale:
            self._drop_stale(plan, result)
        others = plan.sample_rows[result.num_tokens != 1].tolist() if self.plans else ()
        if any(row not in result.failed and row not in self._stale for row in others):
            raise PluginContractError("a draw that the next step builds on gave another number of tokens than one")
        if self._stale:
            self._stale = {row: step for row, step in self._stale.items() if step > plan.step}
        if any(later.copies for later in self.plans):
            return  # a table that waits here may be all that holds a copy's source
        while self._later and self._later[0][0] <= plan.step:
            self._later.popleft()[1]()

    def free(self, seq: Sequence) -> None:
        """`seq`, which has a row, has ended: its blocks are free once no step in flight can use them."""
        if self.plans:
            self._stale[seq.row] = self.plans[-1].step
        self._after(partial(self._allocator.free, seq))

    def removed(self, group: Group, rows: list[int]) -> None:
        """`group` is gone; so are its `rows` once no step in flight can use them."""
        self._bound.pop(group.id, None)
        self._after(partial(self._queues.give_back, rows))

    def _after(self, action: Callable[[], None]) -> None:
        if self.plans:
            self._later.append((self.plans[-1].step, action))
        else:
            action()

    def _drop_stale(self, plan: StepPlan, result: StepResult) -> None:
        stale = np.isin(plan.sample_rows, list(self._stale))
        result.num_tokens = np.where(stale, 0, result.num_tokens)
        result.failed = {row: reason for row, reason in result.failed.items() if row not in self._stale}
        result.prompt_logprobs = {row: top for row, top in result.prompt_logprobs.items() if row not in self._stale}
