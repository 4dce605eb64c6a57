"""Which decoding sequences share leading blocks, so that attention can read those once for all of them.

Tables that begin with the same block ids form a tree: a node is a run of blocks that several rows have in common, its
children are the rows that go on together. Every row may be in one set only, so a node competes with what lies below
it; reading `depth` blocks once instead of `rows` times saves (rows - 1) * depth block reads, and the larger sum wins:

    A 1 2 3 4 5 6      the root {A B C D} saves 3 * 2 = 6, its children {A B} and {C D} save 6 + 4 = 10 together
    B 1 2 3 4 5 6
    C 1 2 7 8 9        only blocks that are full and computed for all members count: nobody writes to them any more
    D 1 2 7 8 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.allocator import Allocator
    from paged_core.api.request import Rows

    Prefixes = list[tuple[NDArray[np.int32], int]]
    Chosen = tuple[list[int], int]


class SharedPrefixes:
    """Finds sets of rows whose tables begin with the same blocks. Sets are searched anew when the decoding rows change,
    and otherwise proved by one comparison of columns: a table may be exchanged under a row that goes on."""

    def __init__(self, allocator: Allocator, rows: Rows) -> None:
        self._allocator = allocator
        self._columns = rows
        self._rows: NDArray[np.int32] | None = None
        self._sets: Prefixes = []
        self._members = np.zeros(0, dtype=np.int32)
        self._expected = np.zeros((0, 0), dtype=np.int32)  # the members' leading blocks, -1 behind what they share

    def among(self, rows: NDArray[np.int32]) -> Prefixes:
        """[(rows, num_blocks)] among decoding `rows`: disjoint sets of at least two, their common leading blocks."""
        if rows is not self._rows or not self._hold():
            self._rows, self._sets = rows, self._find(rows)
            self._expect()
        return self._sets

    def _hold(self) -> bool:
        """Whether all sets are still as they were found."""
        if not self._sets:
            return True
        found = self._allocator.tables[self._members, : self._expected.shape[1]]
        return bool(((found == self._expected) | (self._expected < 0)).all())

    def _expect(self) -> None:
        if not self._sets:
            return
        self._members = np.concatenate([rows for rows, _ in self._sets])
        depths = np.repeat([depth for _, depth in self._sets], [len(rows) for rows, _ in self._sets])
        expected = self._allocator.tables[self._members, : depths.max()]
        self._expected = np.where(np.arange(depths.max()) < depths[:, None], expected, -1)

    def _find(self, rows: NDArray[np.int32]) -> Prefixes:
        full = self._columns.num_computed[rows] // self._allocator.block_size
        rows, full = _with_company(self._allocator.tables, rows, full)
        if len(rows) < 2:
            return []
        width = int(np.partition(full, -2)[-2])  # nobody shares more than the second longest has
        own = -1 - np.arange(len(rows), dtype=np.int32)[:, None]  # unlike anything, for what lies behind full blocks
        leading = np.where(np.arange(width) < full[:, None], self._allocator.tables[rows, :width], own)
        order = np.argsort(leading.view(np.dtype((np.void, leading.itemsize * width)))[:, 0], kind="stable")
        rows, leading = rows[order], leading[order]
        differs = leading[1:] != leading[:-1]
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
        return [(rows[members], depth) for members, depth in best_sets(common.tolist())]


def _with_company(
    tables: NDArray[np.int32], rows: NDArray[np.int32], full: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The rows, and their full blocks, whose first block is full and is the first block of another one too."""
    rows, full = rows[full > 0], full[full > 0]
    if len(rows) < 2:
        return rows, full
    first = tables[rows, 0]
    order = np.argsort(first, kind="stable")
    same = first[order[1:]] == first[order[:-1]]
    kept = order[np.append(same, False) | np.append(False, same)]
    return rows[kept], full[kept]


@dataclass(slots=True)
class _Run:
    """Closed rows `first` to `end` - 1: the sets chosen among them as (rows, blocks), the block reads those save, and
    the rows in no set."""

    first: int
    end: int
    sets: list[Chosen]
    saved: int
    free: list[int]


@dataclass(slots=True)
class _Node:
    """Rows from `first` on that have `depth` blocks in common, still open; `below`: runs that have more."""

    depth: int
    first: int
    below: list[_Run]

    def close(self, end: int) -> _Run:
        """Make a set at this depth if that saves more than the sets below. A run below keeps its own where those save
        more than its rows would here; its free rows join in any case."""
        runs = self._runs(end)
        joint: list[int] = []
        kept: list[Chosen] = []
        saved = -self.depth
        for run in runs:
            apart, joined = run.saved + len(run.free) * self.depth, (run.end - run.first) * self.depth
            joint += run.free if apart > joined else range(run.first, run.end)
            kept += run.sets if apart > joined else []
            saved += max(apart, joined)
        without = sum(run.saved for run in runs)
        if saved > without:
            return _Run(self.first, end, [*kept, (joint, self.depth)], saved, [])
        sets = [chosen for run in runs for chosen in run.sets]
        return _Run(self.first, end, sets, without, [row for run in runs for row in run.free])

    def _runs(self, end: int) -> list[_Run]:
        """All rows of the node in order: runs below it, and single rows."""
        runs, row = [], self.first
        for run in [*self.below, _Run(end, end, [], 0, [])]:
            runs += [_Run(single, single + 1, [], 0, [single]) for single in range(row, run.first)]
            runs.append(run)
            row = run.end
        return runs


def best_sets(common: list[int]) -> list[Chosen]:
    """Disjoint sets of sorted rows that save much, as (rows, blocks in common); common[i]: what rows i and i + 1 share.

    Bottom up, every node knowing what is best below it alone: with more than two levels that may miss the optimum.
    """
    path = [_Node(0, 0, [])]  # from the root to the node that the last row lies in, depths rising
    for row, depth in enumerate([*common, 0]):
        first = row
        below: list[_Run] = []
        while path[-1].depth > depth:
            node = path.pop()
            first = node.first
            closed = node.close(row + 1)
            if path[-1].depth >= depth:
                path[-1].below.append(closed)
            else:
                below = [closed]
        if path[-1].depth < depth:
            path.append(_Node(depth, first, below))
    return [chosen for run in path[0].below for chosen in run.sets]
