"""Judges: one function per law of `paged_core.api.scheduler`. Each looks at one decision beside the view it was made
from and answers with the breach in words, or None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_core.api.allocator import Scratch
from paged_core.api.request import GroupState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paged_core.api.request import Group
    from paged_core.api.scheduler import Decision, View


class RecordingScratch(Scratch):
    """Passes everything on and keeps what was accepted: tokens by group, whether the decodes were taken."""

    def __init__(self, inner: Scratch) -> None:
        self.inner = inner
        self.taken: dict[Group, int] = {}
        self.took_decodes = False

    @property
    def free(self) -> int:
        """Passed on."""
        return self.inner.free

    @property
    def total(self) -> int:
        """Passed on."""
        return self.inner.total

    def gap(self, group: Group) -> int:
        """Passed on."""
        return self.inner.gap(group)

    def need(self, group: Group, num_tokens: int) -> int:
        """Passed on."""
        return self.inner.need(group, num_tokens)

    def take(self, group: Group, num_tokens: int) -> bool:
        """Passed on; noted when accepted."""
        accepted = self.inner.take(group, num_tokens)
        if accepted:
            self.taken[group] = self.taken.get(group, 0) + num_tokens
        return accepted

    def need_decodes(self) -> int:
        """Passed on."""
        return self.inner.need_decodes()

    def take_decodes(self) -> bool:
        """Passed on; noted when accepted."""
        self.took_decodes = self.inner.take_decodes() or self.took_decodes
        return self.took_decodes

    def give_back(self, group: Group) -> int:
        """Passed on."""
        return self.inner.give_back(group)


@dataclass(slots=True)
class Seen:
    """One decision. `running`, `preempted` and `waiting` are as they were before it; `changed` says what `decide`
    altered of the view, in words. `chunked`: a prompt may be cut, so that a part of it counts as something to run."""

    view: View
    decision: Decision
    scratch: RecordingScratch
    running: Sequence[Group]
    preempted: Sequence[Group]
    waiting: Sequence[Group]
    chunked: bool
    changed: str | None = None
    covered: list[Group] = field(default_factory=list)
    """Groups that `decode_all` runs."""

    def __post_init__(self) -> None:
        victims = set(self.decision.preempt)
        if self.decision.decode_all:
            self.covered = [group for group in self.running if group.decoding and group not in victims]

    @property
    def num_tokens(self) -> int:
        """Tokens this decision schedules."""
        return sum(run.num_tokens for run in self.decision.run) + sum(len(group.live) for group in self.covered)

    @property
    def newcomers(self) -> list[Group]:
        """Groups admitted by it."""
        return [run.group for run in self.decision.run if run.group.state is GroupState.WAITING]


def budget(seen: Seen) -> str | None:
    """Law 6: scheduled tokens <= token_budget."""
    if seen.num_tokens > seen.view.token_budget:
        return f"{seen.num_tokens} tokens are scheduled, the budget is {seen.view.token_budget}"
    return None


def cap(seen: Seen) -> str | None:
    """Law 6: sequences of running groups <= max_num_seqs."""
    staying = [group for group in seen.running if group not in seen.decision.preempt]
    after = [*staying, *seen.newcomers, *seen.decision.resume]
    num = sum(group.num_reserved_rows for group in after)
    before = sum(group.num_reserved_rows for group in seen.running)
    if num > max(seen.view.max_num_seqs, before):
        return f"{num} sequences would run, the cap is {seen.view.max_num_seqs}"
    return None


def once(seen: Seen) -> str | None:
    """Law 7: a group is named at most once among those that run, and once among those that leave or return."""
    decision = seen.decision
    for title, groups in (
        ("run and decode_all", [*(run.group for run in decision.run), *seen.covered]),
        ("preempt and resume", [*decision.preempt, *decision.resume]),
    ):
        twice = sorted({group.id for group in groups if groups.count(group) > 1})
        if twice:
            return f"{', '.join(twice)} named twice in {title}"
    return None


def queue(seen: Seen) -> str | None:
    """Law 7: victims run, returners are preempted, whatever runs is running, waiting or resumed."""
    decision = seen.decision
    wrong = [f"preempts {group.id} ({group.state.value})" for group in decision.preempt if group not in seen.running]
    wrong += [f"resumes {group.id} ({group.state.value})" for group in decision.resume if group not in seen.preempted]
    resumed = set(decision.resume)
    for group, _ in decision.run:
        if group not in seen.running and group not in resumed and group.state is not GroupState.WAITING:
            wrong.append(f"runs {group.id} ({group.state.value})")
    return "; ".join(wrong) or None


def victims(seen: Seen) -> str | None:
    """Law 11: a victim receives no slots in the same step."""
    both = sorted({run.group.id for run in seen.decision.run} & {group.id for group in seen.decision.preempt})
    return f"victims {', '.join(both)} also run" if both else None


def gap(seen: Seen) -> str | None:
    """A run's tokens lie in 1 .. scratch.gap(group)."""
    for group, num_tokens in seen.decision.run:
        most = seen.scratch.gap(group)
        if not 1 <= num_tokens <= most:
            return f"{num_tokens} tokens of {group.id}, whose gap is {most}"
    return None


def gang(seen: Seen) -> str | None:
    """A decoding group runs all its live branches or none."""
    for group, num_tokens in seen.decision.run:
        if group in seen.running and group.decoding and num_tokens != len(group.live):
            return f"{num_tokens} of the {len(group.live)} branches of {group.id} run"
    return None


def room(seen: Seen) -> str | None:
    """Everything that runs was accepted by the scratch."""
    for group, num_tokens in seen.decision.run:
        in_decodes = seen.scratch.took_decodes and group in seen.running and group.decoding
        if seen.scratch.taken.get(group, 0) < num_tokens and not in_decodes:
            taken = seen.scratch.taken.get(group, 0)
            return f"{num_tokens} tokens of {group.id} run, the scratch accepted {taken}"
    if not seen.scratch.took_decodes:
        refused = [group.id for group in seen.covered if group not in seen.scratch.taken]
        if refused:
            return f"decode_all runs {', '.join(refused)}, which neither take_decodes nor take accepted"
    return None


def progress(seen: Seen) -> str | None:
    """When something can run, something runs (a step that only brings groups back counts)."""
    if seen.num_tokens or seen.decision.resume:
        return None
    if able := _able(seen):
        return f"nothing runs though {able} could"
    if seen.decision.empty and len(seen.running) > 1:
        return f"{len(seen.running)} groups hold blocks, none goes on and none leaves"
    return None


def untouched(seen: Seen) -> str | None:
    """`decide` is pure but for the scratch and the scheduler's own notes."""
    return seen.changed


def returners_first(seen: Seen) -> str | None:
    """Law 12 (fcfs): preempted groups come back before newcomers of equal or lesser priority."""
    away = [group for group in seen.preempted if group not in seen.decision.resume]
    for newcomer in seen.newcomers:
        if older := [group.id for group in away if group.priority <= newcomer.priority]:
            return f"{newcomer.id} is admitted while {', '.join(older)} (preempted) still waits to come back"
    return None


def in_order(seen: Seen) -> str | None:
    """fcfs: no newcomer is admitted before one of equal priority that came earlier."""
    admitted = set(seen.newcomers)
    passed: list[Group] = []
    for group in seen.waiting:
        if group not in admitted:
            passed.append(group)
        elif over := [other.id for other in passed if other.priority <= group.priority]:
            return f"{group.id} is admitted before {over[0]}, which came earlier"
    return None


def newest_leaves(seen: Seen) -> str | None:
    """fcfs: the oldest running group of the most urgent priority is not evicted for a younger one (case P07)."""
    if len(seen.running) < 2 or not seen.decision.preempt:
        return None
    urgent = min(group.priority for group in seen.running)
    oldest = min((group for group in seen.running if group.priority == urgent), key=lambda group: group.arrival)
    peers = [group for group in seen.running if group.arrival == oldest.arrival and group.priority == urgent]
    if len(peers) == 1 and oldest in seen.decision.preempt:
        return f"{oldest.id} is the oldest of {len(seen.running)} running groups and is evicted"
    return None


LAWS: Mapping[str, Callable[[Seen], str | None]] = {
    judge.__name__: judge
    for judge in (
        budget,
        cap,
        once,
        queue,
        victims,
        gap,
        gang,
        room,
        progress,
        untouched,
        returners_first,
        in_order,
        newest_leaves,
    )
}
FCFS = frozenset({"returners_first", "in_order", "newest_leaves"})
"""The laws that bind only schedulers that declare `fcfs`."""


def _able(seen: Seen) -> str | None:
    """A group that the scratch, as the scheduler left it, would still let run within budget and cap.

    When nobody runs, the first of the preempted groups is asked alone: where it cannot fit, the engine ends it.
    """
    if seen.scratch.taken:
        return next(iter(seen.scratch.taken)).id
    for group in seen.running:
        if group not in seen.decision.preempt and _fits(seen, group):
            return group.id
    if not seen.running and not seen.decision.preempt:
        for group in seen.preempted[:1] or seen.waiting:
            if group.num_reserved_rows <= seen.view.num_free_seqs and _fits(seen, group, whole=True):
                return group.id
    return None


def _fits(seen: Seen, group: Group, *, whole: bool = False) -> bool:
    """Whether its next share fits; `whole`: all of what it lacks must fit the pool, as admission may well ask."""
    most, left = seen.scratch.gap(group), seen.view.token_budget
    cut = seen.chunked and most > len(group.live)
    if most > left and not cut:
        return False
    return seen.scratch.need(group, most if whole else min(most, left)) <= seen.scratch.free
