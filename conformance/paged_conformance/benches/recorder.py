"""Recorder: a scheduler that passes on what the one it wraps decides, and judges every decision on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_conformance.benches.judges import LAWS, RecordingScratch, Seen
from paged_core.api.scheduler import Decision, Scheduler, View

if TYPE_CHECKING:
    from paged_core.api.request import Group


@dataclass(frozen=True, slots=True)
class StepNote:
    """One decision in ids: tokens by group (decodes of `decode_all` included), who left, who returned, who entered."""

    step: int
    tokens: dict[str, int]
    preempt: tuple[str, ...]
    resume: tuple[str, ...]
    admitted: tuple[str, ...]
    num_running: int


class Recorder(Scheduler):
    """`notes`: every decision. `breaches`: law -> its first breach, with the step and the numbers."""

    def __init__(self, inner: Scheduler, *, chunked: bool) -> None:
        self._inner = inner
        self._chunked = chunked
        self.notes: list[StepNote] = []
        self.breaches: dict[str, str] = {}
        self.forgotten: list[str] = []

    def decide(self, view: View) -> Decision:
        """The wrapped scheduler's decision, judged before the ledger sees it."""
        waiting, running, preempted = list(view.waiting), list(view.running), list(view.preempted)
        view.scratch = scratch = RecordingScratch(view.scratch)
        before = _facts(view)
        decision = self._inner.decide(view)
        changed = next((f"{key} was changed" for key, value in _facts(view).items() if value != before[key]), None)
        seen = Seen(view, decision, scratch, running, preempted, waiting, self._chunked, changed)
        for law, judge in LAWS.items():
            if law not in self.breaches and (breach := judge(seen)) is not None:
                self.breaches[law] = f"step {view.step}, budget {view.token_budget}, {scratch.total} blocks: {breach}"
        self.notes.append(_note(seen))
        return decision

    def forget(self, group: Group) -> None:
        """Passed on, and noted."""
        self.forgotten.append(group.id)
        self._inner.forget(group)


def _note(seen: Seen) -> StepNote:
    tokens = {run.group.id: run.num_tokens for run in seen.decision.run}
    tokens |= {group.id: len(group.live) for group in seen.covered}
    return StepNote(
        seen.view.step,
        tokens,
        tuple(group.id for group in seen.decision.preempt),
        tuple(group.id for group in seen.decision.resume),
        tuple(group.id for group in seen.newcomers),
        len(seen.running),
    )


def _facts(view: View) -> dict[str, object]:
    """Everything of a view that a scheduler could alter, notes and scratch contents left out."""
    numbers = ("now", "step", "token_budget", "max_num_seqs", "num_free_seqs", "num_decode_tokens")
    facts: dict[str, object] = {f"view.{name}": getattr(view, name) for name in numbers}
    facts["view.scratch"] = id(view.scratch)
    queues = {"waiting": list(view.waiting), "running": list(view.running), "preempted": list(view.preempted)}
    for name, groups in queues.items():
        facts[f"view.{name}"] = [group.id for group in groups]
        facts[f"a group of view.{name}"] = [
            (group.state, group.residency, group.num_preemptions, [seq.num_computed for seq in group.sequences])
            for group in groups
        ]
    facts["view.prefilling"] = [group.id for group in view.prefilling]
    return facts
