"""Beams: the rows and blocks of beam searches.

A beam that goes on keeps its row and its blocks; every further continuation of it is a fork, which shares all blocks
and copies the partly filled last one when it writes. Beams without a continuation are never a fork's source: their
blocks go back first, and their rows are the forks' rows. No tokens' keys and values are ever moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.request import Sequence
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.allocator import Allocator
    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.request import Group
    from paged_core.engine.beam_search import BeamSearch, Continuation
    from paged_core.engine.branches import Branches
    from paged_core.engine.queues import Queues

OUT = "beam"  # finish reason of a sequence whose beam was dropped; it is live again once another beam forks into it


class Beams:
    """All beam searches of an engine.

    `wanted` int32 [rows]: candidates the sampler is to give for a row; 0 for rows that no beam search owns.
    `changed`: sequences whose history is not what their row's sampler knows. `advanced`: groups that drew this step.
    """

    def __init__(self, queues: Queues, allocator: Allocator, branches: Branches) -> None:
        self._queues = queues
        self._allocator = allocator
        self._branches = branches
        self._searches: dict[str, BeamSearch] = {}
        self._running: dict[str, list[Sequence]] = {}  # in the order of the search's running beams
        self.wanted: NDArray[np.int32] = np.zeros(queues.rows.capacity, dtype=np.int32)
        self.changed: dict[Sequence, None] = {}
        self.advanced: list[Group] = []

    def __bool__(self) -> bool:
        """Whether any beam search is under way."""
        return bool(self._searches)

    def add(self, group: Group, search: BeamSearch) -> None:
        """`group` is a beam search; it waits."""
        self._searches[group.id] = search
        self._running[group.id] = list(group.sequences)

    def search(self, group: Group) -> BeamSearch | None:
        """The search of `group`, or None for a group that is none."""
        return self._searches.get(group.id)

    def admitted(self, group: Group) -> None:
        """`group` has its first row."""
        if (search := self.search(group)) is not None:
            self.wanted[group.sequences[0].row] = search.num_candidates

    def drew(self, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of `rows` belong to beam searches."""
        return self.wanted[rows] > 0

    def select(self, plan: StepPlan, result: StepResult) -> None:
        """Advance every search that drew. One whose logits failed is left as it is, to be ended by the emitter."""
        self.advanced = []
        draw_of_row = {int(plan.sample_rows[i]): int(i) for i in np.flatnonzero(self.drew(plan.sample_rows))}
        groups = dict.fromkeys(self._queues.group_of_row[row] for row in draw_of_row)
        for group in groups:
            assert group is not None
            running = self._running[group.id]
            draws = [draw_of_row[seq.row] for seq in running]
            if any(seq.row in result.failed for seq in running):
                continue
            if any(draw not in result.candidates for draw in draws):
                raise PluginContractError(
                    f"beam search {group.id}: the sampler gave no candidates though {self.wanted[running[0].row]} were "
                    "wanted of each draw"
                )
            search = self._searches[group.id]
            continued = search.advance([result.candidates[draw] for draw in draws])
            self.advanced.append(group)
            if not search.done:
                drawn = [int(result.tokens[draw, 0]) for draw in draws]
                self._go_on(group, continued, drawn)

    def take_changed(self) -> list[Sequence]:
        """Sequences whose rows must be started anew with what they now hold; their tables changed too."""
        changed, self.changed = list(self.changed), {}
        return [seq for seq in changed if not seq.finished]

    def remove(self, group: Group) -> None:
        """`group` has ended."""
        if self._searches.pop(group.id, None) is None:
            return
        del self._running[group.id]
        self.advanced = [other for other in self.advanced if other is not group]
        for seq in group.sequences:
            self.changed.pop(seq, None)
            if seq.row >= 0:
                self.wanted[seq.row] = 0

    def _go_on(self, group: Group, continued: list[Continuation], drawn: list[int]) -> None:
        """Free what ends, fork what multiplies, then give every beam its token."""
        before = self._running[group.id]
        self._give_rows(group)
        kept = {continuation.parent for continuation in continued}
        for place, seq in enumerate(before):
            if place not in kept:
                self._drop(group, seq)
        spare = [seq for seq in group.sequences if seq.finished]
        running = []
        for parent, token in continued:
            if parent in kept:
                kept.remove(parent)
                seq = before[parent]
                if token != drawn[parent]:
                    self.changed[seq] = None
            else:
                seq = spare.pop(0)
                self._fork(before[parent], seq)
            running.append(seq)
        rows = self._queues.rows
        for seq, (_, token) in zip(running, continued, strict=True):
            rows.tokens[seq.row, rows.num_tokens[seq.row]] = token
            rows.num_tokens[seq.row] += 1
        if len(running) != len(before):
            self._queues.branch_ended()
        self._running[group.id] = running

    def _give_rows(self, group: Group) -> None:
        """All rows the beams may need, at the first draw; sequences without a beam are out."""
        for index in range(len(group.sequences), group.num_reserved_rows):
            seq = Sequence(group.request, index)
            seq.finish_reason = OUT
            self._queues.give_row(group, seq)
            self.wanted[seq.row] = self._searches[group.id].num_candidates
            group.sequences.append(seq)

    def _drop(self, group: Group, seq: Sequence) -> None:
        seq.finish_reason = OUT
        self.changed.pop(seq, None)
        self._branches.end(group, seq)
        self._allocator.free(seq)

    def _fork(self, parent: Sequence, child: Sequence) -> None:
        child.finish_reason, child.parent = None, None
        self._branches.fork(parent, child)
        self.changed[child] = None
