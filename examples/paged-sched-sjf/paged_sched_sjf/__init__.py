"""sched_sjf: the shortest job first, with ageing so that long ones are not forgotten.

How long an answer will be, nobody knows beforehand: it is predicted by the `max_tokens` that the request announces. In
a simulation the true length is known, and reading it makes this policy an oracle: what it gains there is the most that
any prediction could gain.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paged_core import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.request import Group, GroupState
from paged_core.api.scheduler import Decision, Run, Scheduler, SchedulerNeed, View


class SjfSettings(PluginSettings):
    """Settings of sched_sjf."""

    ageing: float = Field(50.0, ge=0.0, description="Tokens by which a job counts as shorter per second it waited.")
    oracle: bool = Field(True, description="Read true output lengths where a simulation knows them.")


class SjfScheduler(Scheduler):
    """Decodes first, then prompts by remaining job less ageing; memory short: the end of that line leaves."""

    def __init__(self, need: SchedulerNeed, settings: SjfSettings) -> None:
        self._chunked, self._ageing, self._oracle = need.chunked_prefill, settings.ageing, settings.oracle

    def decide(self, view: View) -> Decision:
        """Run what runs, evicting where memory is short; let others in only when everyone could go on."""
        plan, left = Decision(), view.token_budget
        queue = sorted(view.running, key=lambda group: self.length(view, group))
        if view.num_decode_tokens <= left and view.scratch.take_decodes():  # the usual step: all decodes at once
            plan.decode_all, left = view.num_decode_tokens > 0, left - view.num_decode_tokens
            queue = [group for group in queue if group in view.prefilling]
        all_went_on = True
        while queue:
            group = queue.pop(next((i for i, group in enumerate(queue) if group.decoding), 0))  # decodes, then prompts
            num = self.share(view, group, left)
            while num and not view.scratch.take(group, num):
                all_went_on = False
                if not queue:  # nobody is left to make room: it waits; should it be alone, the engine ends it
                    num = 0
                    break
                plan.preempt.append(queue.pop())
                view.scratch.give_back(plan.preempt[-1])
            if num:
                plan.run.append(Run(group, num))
                left -= num
        if all_went_on:
            self.admit(view, plan, left)
        return plan

    def admit(self, view: View, plan: Decision, left: int) -> None:
        """Those who were evicted return first, then the shortest; whole prompts only, beside what is owed already.

        A block for each that runs is owed too: otherwise whoever enters would soon be evicted again.
        """
        taken = {run.group: run.num_tokens for run in plan.run}
        owed = sum(self.rest(view, group, taken.get(group, 0)) for group in view.prefilling) + len(view.running)
        seqs = view.num_free_seqs
        for group in [*view.preempted, *sorted(view.waiting, key=lambda group: self.length(view, group))]:
            num = self.share(view, group, left)
            seqs -= group.num_reserved_rows
            if not num or seqs < 0 or view.scratch.need(group, view.scratch.gap(group)) + owed > view.scratch.free:
                return  # nobody overtakes the head of the line: ageing would be worth nothing
            view.scratch.take(group, num)
            plan.run.append(Run(group, num))
            left -= num
            owed += self.rest(view, group, num)
            if group.state is GroupState.PREEMPTED:
                plan.resume.append(group)

    def length(self, view: View, group: Group) -> float:
        """Tokens left to compute and to be given, predicted ones among them, less what waiting earned."""
        output = (group.true_output_len if self._oracle else None) or group.max_tokens or 0
        given = max(seq.num_output for seq in group.live)
        return view.scratch.gap(group) + output - given - self._ageing * (view.now - group.arrival)

    def share(self, view: View, group: Group, left: int) -> int:
        """Tokens that may run out of `left`: all, or a chunk of a prompt. A decoding gang is never cut."""
        gap = view.scratch.gap(group)
        whole = gap == len(group.live) or not (self._chunked or gap > view.token_budget)
        return gap if gap <= left else 0 if whole else left

    def rest(self, view: View, group: Group, num_taken: int) -> int:
        """Blocks that the rest of a prompt will need."""
        gap = view.scratch.gap(group) - num_taken
        return view.scratch.need(group, gap) if gap else 0


class SjfProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `SjfScheduler`; priority 0, so that `auto` does not choose it unasked."""

    name, kind, api, priority = "sched_sjf", "sched", 1, 0
    summary = "shortest job first (prompt and announced output), with ageing"
    capabilities = frozenset({"chunked_prefill"})
    Settings = SjfSettings

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        reasons = self.missing_capabilities(need.required)
        if min(need.token_budget, need.max_num_seqs) < 1:
            reasons.append("the token budget and max_num_seqs must be at least 1")
        return Fit.judge(reasons)

    def create(self, need: SchedulerNeed, settings: Any, plugins: PluginRegistry) -> Scheduler:
        """Build the scheduler."""
        return SjfScheduler(need, settings)


@hookimpl
def paged_scheduler() -> SjfProvider:
    """Register the provider."""
    return SjfProvider()
