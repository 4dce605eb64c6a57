"""Branches: how the sequences of one group multiply (paper, section 4.4).

A group starts as one sequence. With its first draw it forks into all its branches, which share every block of the
prompt; only the partly filled last one is copied, when a branch writes to it. A recomputed group keeps its fork tree:
roots are opened, and a branch comes back by `fork` as soon as its parent has computed the tokens they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.request import Sequence

if TYPE_CHECKING:
    from paged_core.api.allocator import Allocator
    from paged_core.api.request import Group
    from paged_core.engine.queues import Queues


class Branches:
    """Forks now and forks to come. `away` are live branches without a table, waiting for their parent."""

    def __init__(self, queues: Queues, allocator: Allocator) -> None:
        self._queues = queues
        self._allocator = allocator
        self._pending: list[tuple[Group, list[Sequence]]] = []
        self.away: set[Sequence] = set()

    def reserve(self, group: Group) -> list[Sequence]:
        """Rows for the branches that `group` forks into when this step's first draws are committed."""
        children = [Sequence(group.request, index) for index in range(len(group.sequences), group.num_reserved_rows)]
        for child in children:
            self._queues.give_row(group, child)
        if children:
            self._pending.append((group, children))
        return children

    def fork_pending(self) -> None:
        """Fork what was reserved, all from the first sequence, whose prompt has just been computed."""
        pending, self._pending = self._pending, []
        for group, children in pending:
            parent = group.sequences[0]
            for child in children:
                self.fork(parent, child)
                group.sequences.append(child)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child`, which has a row and no parent, begins as a copy of all that `parent` has computed."""
        self._fork(parent, child, parent.num_computed)

    def drop(self, group: Group) -> None:
        """The group's blocks are gone and will be recomputed: branches wait, roots will be opened."""
        live = set(group.live)
        self.away |= {seq for seq in live if seq.parent in live}

    def restore(self, group: Group) -> None:
        """Bring back every branch whose parent has computed what they share."""
        for seq in group.live:
            parent = seq.parent
            if seq not in self.away or parent is None or parent in self.away:
                continue
            if parent.num_computed >= seq.divergence:
                self.away.discard(seq)
                self._fork(parent, seq, seq.divergence)

    def end(self, group: Group, seq: Sequence) -> None:
        """`seq` ends: its first live child takes its place in the fork tree, as parent of the others.

        A branch ends with its own draw, for which the whole gang had to be here: nobody is away.
        """
        children = [child for child in group.live if child.parent is seq]
        if not children:
            return
        heir, *others = children
        for child in others:
            child.parent, child.divergence = heir, min(child.divergence, heir.divergence)
        heir.parent = seq.parent
        heir.divergence = min(heir.divergence, seq.divergence) if seq.parent is not None else 0

    def _fork(self, parent: Sequence, child: Sequence, length: int) -> None:
        rows, source, target = parent.rows, parent.row, child.row
        assert rows is not None
        if child.parent is None:  # a new branch, not one that comes back with tokens of its own
            child.parent, child.divergence = parent, length
            rows.tokens[target, :length] = rows.tokens[source, :length]
            rows.num_tokens[target] = rows.num_tokens[source]
        rows.num_computed[target] = length
        self._allocator.fork(parent, child)
