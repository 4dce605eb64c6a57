"""PrefixScheduler: running groups first, then preempted ones, then newcomers by what the cache holds of them."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from paged_core.api.request import Group, GroupState
from paged_core.api.scheduler import Decision, Run, Scheduler, SchedulerNeed, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_sched_prefix import PrefixSettings

_ORDER = "sched_prefix.order"  # note: how many groups were admitted before; breaks ties of arrival
_OVERTAKEN = "sched_prefix.overtaken"  # note: how many later arrivals entered before this group


class PrefixScheduler(Scheduler):
    """Longest cached prefix first, within limits. See the README for the rules and why each is there."""

    def __init__(self, need: SchedulerNeed, settings: PrefixSettings) -> None:
        self._chunked = need.chunked_prefill
        self._watermark = settings.watermark
        self._max_overtakes = settings.max_overtakes
        self._window = settings.window
        self._num_admitted = 0

    def decide(self, view: View) -> Decision:
        """Decodes, then prompts already started, then (if nobody had to yield) returners, then newcomers."""
        plan = Decision()
        budget = view.token_budget - view.num_decode_tokens
        if budget >= 0 and self._fits(view, budget):
            plan.decode_all = view.scratch.take_decodes() and view.num_decode_tokens > 0
            for group in view.prefilling:
                budget -= self._run(view, plan, group, budget)
            self._enter(view, plan, budget)
        else:
            self._squeeze(view, plan)
        return plan

    def _fits(self, view: View, budget: int) -> bool:
        """Whether everyone who runs can go on without a victim."""
        need = view.scratch.need_decodes()
        for group in view.prefilling:
            if num := self._share(view, group, budget):
                need += view.scratch.need(group, num)
                budget -= num
        return need <= view.scratch.free

    def _squeeze(self, view: View, plan: Decision) -> None:
        """Memory or budget is short: oldest first; while one does not fit, the newest that has not run yet leaves."""
        queue = deque(sorted(view.running, key=_age))
        left, reserved, search = view.token_budget, view.num_decode_tokens, True
        while queue:
            group = queue.popleft()
            if group.decoding:
                reserved -= len(group.live)
                num = len(group.live) if len(group.live) <= left else 0
            else:
                num = self._share(view, group, left - reserved)
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

    def _enter(self, view: View, plan: Decision, budget: int) -> None:
        """Resume, then admit, each head of line: the first that does not fit whole stops everyone behind it.

        So what is due to enter cannot be starved by smaller ones, whatever put it in front.
        """
        seqs = view.num_free_seqs
        if budget < 1 or seqs < 1 or not (view.preempted or view.waiting):
            return
        taken = {run.group: run.num_tokens for run in plan.run}
        owed = sum(self._rest(view, group, taken.get(group, 0)) for group in view.prefilling)
        reserve = int(self._watermark * view.scratch.total)
        for group in self._line(view):
            alone = not view.running and not plan.run
            seqs -= group.num_reserved_rows
            num = self._share(view, group, budget)
            spare = view.scratch.free - (0 if alone else owed + reserve + _fan_out(group))
            if seqs < 0 or not num or view.scratch.need(group, view.scratch.gap(group)) > spare:
                return
            if group.state is GroupState.PREEMPTED:
                plan.resume.append(group)
            else:
                group.notes[_ORDER] = self._num_admitted
                self._num_admitted += 1
            budget -= self._run(view, plan, group, budget)
            owed += self._rest(view, group, num)

    def _run(self, view: View, plan: Decision, group: Group, budget: int) -> int:
        num = self._share(view, group, budget)
        if not num or not view.scratch.take(group, num):
            return 0
        plan.run.append(Run(group, num))
        return num

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

    def _line(self, view: View) -> Iterator[Group]:
        """Preempted groups by age, then waiting ones; asking for the next means that the last one entered."""
        yield from sorted(view.preempted, key=_age)
        waiting = list(islice(view.waiting, self._window))
        hits = {group: group.gap - view.scratch.gap(group) for group in waiting}
        while waiting:
            late = (group for group in waiting if _num_overtaken(group) >= self._max_overtakes)
            chosen = next(late, None) or max(waiting, key=hits.__getitem__)  # of equals the first, who came first
            place = waiting.index(chosen)
            yield chosen
            for group in waiting[:place]:
                group.notes[_OVERTAKEN] = _num_overtaken(group) + 1
            del waiting[place]

    def _rest(self, view: View, group: Group, num_taken: int) -> int:
        """Blocks that the rest of a prompt will need, and the branches it will fork into."""
        rest = view.scratch.gap(group) - num_taken
        return (view.scratch.need(group, rest) if rest else 0) + _fan_out(group)


def _num_overtaken(group: Group) -> int:
    count = group.notes.get(_OVERTAKEN, 0)
    return count if isinstance(count, int) else 0


def _fan_out(group: Group) -> int:
    """Branches still to be forked; each takes one block with its first token."""
    return max(0, group.num_reserved_rows - len(group.sequences))


def _age(group: Group) -> tuple[float, int]:
    order = group.notes.get(_ORDER, 0)
    return group.arrival, order if isinstance(order, int) else 0
