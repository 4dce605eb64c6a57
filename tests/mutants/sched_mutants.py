"""Broken schedulers, each sched_fcfs with one defect. `test_sched_mutants.py` names the test that catches it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Decision, Run, Scheduler, SchedulerNeed, View

if TYPE_CHECKING:
    from paged_core.api.request import Group


class Wrapped(Scheduler):
    """sched_fcfs, passed on faithfully; a mutant overrides `decide`."""

    capabilities = frozenset({"fcfs", "chunked_prefill"})

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner

    def decide(self, view: View) -> Decision:
        return self.inner.decide(view)

    def forget(self, group: Group) -> None:
        self.inner.forget(group)


class Altered(View):
    """A view that lies about what it is told to lie about."""

    def __init__(self, view: View, **lies: Any) -> None:
        self.now, self.step = view.now, view.step
        self.token_budget, self.max_num_seqs = view.token_budget, view.max_num_seqs
        self.scratch, self.waiting, self.running = view.scratch, view.waiting, view.running
        self.preempted, self.prefilling = view.preempted, view.prefilling
        self.num_decode_tokens, self.num_free_seqs = view.num_decode_tokens, view.num_free_seqs
        self.eviction_cost = view.eviction_cost  # type: ignore[method-assign]
        for name, value in lies.items():
            setattr(self, name, value)

    def eviction_cost(self, group: Group) -> float:
        raise AssertionError("replaced by the constructor")


class LastComeFirstServed(Wrapped):
    """Admits the newest request first: under load the oldest starves."""

    def decide(self, view: View) -> Decision:
        return self.inner.decide(Altered(view, waiting=list(view.waiting)[::-1]))


class OneTokenTooMany(Wrapped):
    """Exceeds the token budget by one."""

    def decide(self, view: View) -> Decision:
        return self.inner.decide(Altered(view, token_budget=view.token_budget + 1))


class VictimRunsToo(Wrapped):
    """Gives slots to the groups it evicts."""

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        decision.run += [Run(group, 1) for group in decision.preempt if view.token_budget > 1]
        return decision


class IgnoresTheScratch(Wrapped):
    """Lets everybody decode, whether there is room or not."""

    def decide(self, view: View) -> Decision:
        if view.num_decode_tokens and view.num_decode_tokens <= view.token_budget:
            return Decision(decode_all=True)
        return self.inner.decide(view)


class NeverResumes(Wrapped):
    """Forgets whom it evicted."""

    def decide(self, view: View) -> Decision:
        return self.inner.decide(Altered(view, preempted=[]))


class CapIgnored(Wrapped):
    """Admits as many sequences as there is room for."""

    def decide(self, view: View) -> Decision:
        return self.inner.decide(Altered(view, num_free_seqs=view.num_free_seqs + 2))


class OldestLeaves(Wrapped):
    """Makes room at the cost of the oldest group, though it declares fcfs."""

    def decide(self, view: View) -> Decision:
        need = view.scratch.need_decodes()
        if len(view.running) > 1 and need > view.scratch.free:
            oldest = min(view.running, key=lambda group: group.arrival)
            view.scratch.give_back(oldest)
            return Decision(preempt=[oldest], decode_all=view.scratch.take_decodes())
        return self.inner.decide(view)


class AdmitsOnlyWhenIdle(Wrapped):
    """Serves one request at a time, however much room there is."""

    def decide(self, view: View) -> Decision:
        busy = view.running or view.preempted
        return self.inner.decide(Altered(view, waiting=[] if busy else list(view.waiting)[:1]))


class Dawdles(Wrapped):
    """Does nothing in every fifth step."""

    def decide(self, view: View) -> Decision:
        self.calls = getattr(self, "calls", 0) + 1
        return Decision() if self.calls % 5 == 0 else self.inner.decide(view)


class EvictsForNoReason(Wrapped):
    """Sends the newest group away now and then, though everything fits."""

    def decide(self, view: View) -> Decision:
        if len(view.running) > 1 and view.step % 7 == 6:
            newest = view.running[-1]
            view.scratch.give_back(newest)
            return Decision(preempt=[newest], decode_all=view.scratch.take_decodes())
        return self.inner.decide(view)


class Overtakes(Wrapped):
    """Lets newcomers in while preempted groups wait to come back."""

    def decide(self, view: View) -> Decision:
        ahead = [] if list(view.waiting) else list(view.preempted)
        return self.inner.decide(Altered(view, preempted=ahead))


class GangCut(Wrapped):
    """Runs as many branches of a decoding group as the budget holds."""

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        left = view.token_budget - sum(run.num_tokens for run in decision.run)
        named = {run.group for run in decision.run} | set(decision.preempt)
        if decision.decode_all:
            return decision
        for group in view.running:
            if group.decoding and group not in named and 0 < left < len(group.live) and view.scratch.take(group, left):
                decision.run.append(Run(group, left))
                left = 0
        return decision


class NamedTwice(Wrapped):
    """Names decoding groups beside `decode_all`."""

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        if decision.decode_all:
            decision.run += [Run(group, 1) for group in view.running if group.decoding][:1]
        return decision


class WholePromptsFirst(Wrapped):
    """Declares chunked_prefill and lets decodes stand still while a prompt is computed."""

    def decide(self, view: View) -> Decision:
        plan = Decision()
        for group in view.prefilling:
            num = min(view.scratch.gap(group), view.token_budget)
            if view.scratch.take(group, num):
                plan.run.append(Run(group, num))
                return plan
        return self.inner.decide(view)


class ComesBackByChunk(Wrapped):
    """Brings a group back as soon as its next chunk fits: it is evicted again before it has computed anything new."""

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        if decision.preempt or decision.resume or decision.run:
            return decision
        for group in view.preempted:
            num = min(view.scratch.gap(group), 4, view.token_budget - view.num_decode_tokens)
            if num > 0 and view.scratch.take(group, num):
                decision.resume.append(group)
                decision.run.append(Run(group, num))
                break
        return decision


class ReordersTheQueue(Wrapped):
    """Sorts the ledger's own list of running groups."""

    def decide(self, view: View) -> Decision:
        running = view.running
        if len(running) > 1 and isinstance(running, list):
            running.reverse()
        return self.inner.decide(view)


class RunsBeyondTheGap(Wrapped):
    """Schedules one token more than a prompt has, where the budget holds it."""

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        if not decision.decode_all and decision.run:
            group, num_tokens = decision.run[-1]
            total = sum(run.num_tokens for run in decision.run)
            if num_tokens == view.scratch.gap(group) and total < view.token_budget:
                decision.run[-1] = Run(group, num_tokens + 1)
        return decision


class LoneGroupLeaves(Wrapped):
    """Evicts even when there is nobody to make room for."""

    def decide(self, view: View) -> Decision:
        if len(view.running) == 1 and view.scratch.need_decodes() > view.scratch.free:
            view.scratch.give_back(view.running[0])
            return Decision(preempt=[view.running[0]])
        return self.inner.decide(view)


class RunsWithoutResume(Wrapped):
    """Runs preempted groups without naming them as returners."""

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        decision.resume = []
        return decision


class SecondComesFirst(Wrapped):
    """Lets the second in line go ahead of the first."""

    def decide(self, view: View) -> Decision:
        line = list(view.waiting)
        return self.inner.decide(Altered(view, waiting=[*line[1:2], *line[:1], *line[2:]]))


class Deaf(Wrapped):
    """Declares priority and does not look at it."""

    capabilities = frozenset({"priority", "chunked_prefill"})


class NeverDisplaces(Deaf):
    """Lets the most urgent enter first, but nobody makes room for them."""

    def decide(self, view: View) -> Decision:
        line = sorted(view.waiting, key=lambda group: group.priority)
        return self.inner.decide(Altered(view, waiting=line))


class NeverAges(NeverDisplaces):
    """Lets the urgent pass the less urgent for ever."""


class DisplacesEquals(Deaf):
    """Lets the newest running group leave for whoever waits, urgent or not."""

    def decide(self, view: View) -> Decision:
        waiting = list(view.waiting)
        if waiting and view.running and waiting[0].num_reserved_rows > view.num_free_seqs:
            view.scratch.give_back(view.running[-1])
            return Decision(preempt=[view.running[-1]])
        return self.inner.decide(view)


class MutantProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers one mutant; it declares what sched_fcfs declares, unless it says otherwise."""

    kind = "sched"
    api = 1
    priority = -1

    def __init__(self, name: str, mutant: type[Wrapped]) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        self.capabilities = mutant.capabilities  # type: ignore[misc]
        self._mutant = mutant

    def probe(self, need: SchedulerNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: SchedulerNeed, settings: PluginSettings, plugins: PluginRegistry) -> Scheduler:
        return self._mutant(plugins.create("sched", "sched_fcfs", replace(need, required=frozenset())))


MUTANTS = {
    "sched_lifo": LastComeFirstServed,
    "sched_one_too_many": OneTokenTooMany,
    "sched_victim_runs": VictimRunsToo,
    "sched_no_scratch": IgnoresTheScratch,
    "sched_never_resumes": NeverResumes,
    "sched_no_cap": CapIgnored,
    "sched_oldest_leaves": OldestLeaves,
    "sched_one_at_a_time": AdmitsOnlyWhenIdle,
    "sched_dawdles": Dawdles,
    "sched_needless_evictions": EvictsForNoReason,
    "sched_overtakes": Overtakes,
    "sched_gang_cut": GangCut,
    "sched_named_twice": NamedTwice,
    "sched_silent_decodes": WholePromptsFirst,
    "sched_chunk_return": ComesBackByChunk,
    "sched_reorders": ReordersTheQueue,
    "sched_beyond_gap": RunsBeyondTheGap,
    "sched_lone_leaves": LoneGroupLeaves,
    "sched_no_resume": RunsWithoutResume,
    "sched_second_first": SecondComesFirst,
    "sched_deaf": Deaf,
    "sched_never_displaces": NeverDisplaces,
    "sched_never_ages": NeverAges,
    "sched_displaces_equals": DisplacesEquals,
}


@hookimpl
def paged_scheduler() -> list[MutantProvider]:
    return [MutantProvider(name, mutant) for name, mutant in MUTANTS.items()]
