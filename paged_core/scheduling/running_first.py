"""RunningFirst: running groups first; the newest leaves when memory is short; the others enter in a line."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from paged_core.api.request import Group, GroupState
from paged_core.api.scheduler import Decision, Run, Scheduler, SchedulerNeed, View

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

_ORDER = "running_first.order"  # note: how many groups were admitted before; breaks ties of arrival
_LAST = 1 << 62  # the order of who was not admitted yet


class RunningFirst(Scheduler):
    """The half that such policies share: subclasses say in which order the others enter (`line`).

    `watermark` is the share of the pool kept free when groups enter. The README of sched_fcfs has the rules and why
    each is there. Policies with steps of another kind are made of the same parts: `run`, `squeeze`, `enter`.
    """

    def __init__(self, need: SchedulerNeed, watermark: float) -> None:
        self._chunked = need.chunked_prefill
        self._watermark = watermark
        self._num_admitted = 0

    def decide(self, view: View) -> Decision:
        """Decodes, then prompts already started, then (if nobody had to yield) returners, then newcomers."""
        plan = Decision()
        budget = view.token_budget - view.num_decode_tokens
        if budget >= 0 and self._fits(view, budget):
            plan.decode_all = view.scratch.take_decodes() and view.num_decode_tokens > 0
            for group in view.prefilling:
                budget -= self.run(view, plan, group, budget)
            self.enter(view, plan, budget, self.line(view))
        else:
            self.squeeze(view, plan, set(view.running))
        return plan

    def rank(self, group: Group) -> tuple[float, int]:
        """Who is served first when not all can be: the least. By age."""
        return age(group)

    @abstractmethod
    def line(self, view: View) -> Iterable[Group]:
        """Preempted and waiting groups in the order in which they may enter; asking for the next: the last one did.

        The first that does not fit whole stops everyone behind it.
        """

    def later(self, group: Group) -> int:
        """Blocks that must stay free for `group` beyond what it lacks now: one for each branch still to be forked."""
        return max(0, group.num_reserved_rows - len(group.sequences))

    def promised(self, view: View) -> int:
        """`later` of all who run; whoever decodes has forked."""
        return sum(self.later(group) for group in view.prefilling)

    def run(self, view: View, plan: Decision, group: Group, budget: int) -> int:
        """Add what fits of `group` to `plan`; its tokens, 0 when nothing does."""
        num = self._share(view, group, budget)
        if not num or not view.scratch.take(group, num):
            return 0
        plan.run.append(Run(group, num))
        return num

    def squeeze(self, view: View, plan: Decision, served: Set[Group]) -> None:
        """Memory or budget is short: by rank; while one does not fit, the last that has not run yet leaves.

        Running groups outside `served` do not run; they keep their blocks unless they are the last.
        """
        queue = deque(sorted(view.running, key=self.rank))
        left, reserved, search = view.token_budget, view.num_decode_tokens, True
        while queue:
            group = queue.popleft()
            if group not in served:
                num = 0
            elif group.decoding:
                num = len(group.live) if len(group.live) <= left else 0
            else:
                num = self._share(view, group, left - reserved)
            reserved -= len(group.live) if group.decoding else 0
            while num and not view.scratch.take(group, num):
                if not queue or not search:
                    num = 0  # it keeps its blocks and waits; alone, the ledger ends it
                    break
                victim = queue.pop()
                plan.preempt.append(victim)
                reserved -= len(victim.live) if victim.decoding else 0
                search = view.scratch.give_back(victim) > 0  # evicting more would free nothing now either
            if num:
                plan.run.append(Run(group, num))
                left -= num

    def enter(self, view: View, plan: Decision, budget: int, line: Iterable[Group]) -> None:
        """Resume and admit from `line`: the first that does not fit whole stops everyone behind it."""
        seqs = view.num_free_seqs
        if budget < 1 or seqs < 1 or not (view.preempted or view.waiting):
            return
        taken = {run.group: run.num_tokens for run in plan.run}
        owed = self.promised(view)
        for group in view.prefilling:
            if rest := view.scratch.gap(group) - taken.get(group, 0):
                owed += view.scratch.need(group, rest)
        reserve = int(self._watermark * view.scratch.total)
        for group in line:
            alone = not view.running and not plan.run
            seqs -= group.num_reserved_rows
            num, gap = self._share(view, group, budget), view.scratch.gap(group)
            later = self.later(group)
            spare = view.scratch.free - (0 if alone else owed + reserve + later)
            if seqs < 0 or not num or view.scratch.need(group, gap) > spare:
                return
            if group.state is GroupState.PREEMPTED:
                plan.resume.append(group)
            else:
                group.notes[_ORDER] = self._num_admitted
                self._num_admitted += 1
            budget -= self.run(view, plan, group, budget)
            owed += later + (view.scratch.need(group, gap - num) if num < gap else 0)

    def _fits(self, view: View, budget: int) -> bool:
        """Whether everyone who runs can go on without a victim."""
        need = view.scratch.need_decodes()
        for group in view.prefilling:
            if num := self._share(view, group, budget):
                need += view.scratch.need(group, num)
                budget -= num
        return need <= view.scratch.free

    def _share(self, view: View, group: Group, budget: int) -> int:
        """Tokens of `group` that may run: a chunk, or all of its gap where it may not be cut.

        A gang each of whose branches lacks one token is never cut; nor are prompts without chunked prefill, unless no
        step could ever hold them whole.
        """
        gap = view.scratch.gap(group)
        whole = gap == len(group.live) or not (self._chunked or gap > view.token_budget)
        if gap <= budget:
            return gap
        return 0 if whole else max(0, budget)


def age(group: Group) -> tuple[float, int]:
    """Arrival, then the order of admission."""
    order = group.notes.get(_ORDER)
    return group.arrival, order if isinstance(order, int) else _LAST


def first_come(view: View) -> Iterator[Group]:
    """A line: preempted groups by age, then waiting ones as they came."""
    yield from sorted(view.preempted, key=age)
    yield from view.waiting
