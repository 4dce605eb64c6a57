"""PagedAllocator: block tables over reference-counted blocks, with copy-on-write, forks and a host tier."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paged_core.api.allocator import Allocator, AllocatorNeed, BlockCopy, BlockMarks, BlockStats, SwapPair
from paged_core.errors import PluginContractError
from paged_core.paging.hits import find_hits
from paged_core.paging.host import HostPool
from paged_core.paging.laws import check_laws
from paged_core.paging.rules import forked_tokens
from paged_core.paging.scratch import PagedScratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.request import Group, Rows, Sequence
    from paged_core.paging.pool import BlockPool


class DecodeColumns(NamedTuple):
    """Where the next token of each of some rows goes; arrays [rows]."""

    nth: NDArray[np.int32]  # the block is the table's n-th
    crosses: NDArray[np.bool_]  # the table ends before that block: a fresh one is needed
    blocks: NDArray[np.int32]  # the block; meaningless where `crosses`
    closed: NDArray[np.bool_]  # the block is shared or published: it may not be written as it is


class PagedAllocator(Allocator):
    """Everything but the index of published blocks: subclasses say how content is found again.

    Columns over table rows, int32 [max_rows]:

    lengths       device blocks in the table; 0 for sequences that are nowhere or on the host
    ends          positions the table was last made to cover: lengths == ceil(ends / block_size) (law 3)
    hit_tokens    tokens that came from the prefix cache when the table was opened

    `owners[row]` is the sequence whose table row `row` is, or None; it is on the host if `host.tables` has the row.
    `sources[row]` are blocks that `row` copied in this step and no table holds any more: pinned until they are copied.
    """

    def __init__(self, need: AllocatorNeed, pool: BlockPool) -> None:
        self.block_size = need.block_size
        self.num_blocks = need.num_blocks
        self.tables: NDArray[np.int32] = np.zeros((need.max_rows, -(-need.max_len // need.block_size)), dtype=np.int32)
        self.pool = pool
        self.host = HostPool(need.num_host_blocks)
        self.caches = need.prefix_cache
        self.lengths: NDArray[np.int32] = np.zeros(need.max_rows, dtype=np.int32)
        self.ends: NDArray[np.int32] = np.zeros(need.max_rows, dtype=np.int32)
        self.hit_tokens: NDArray[np.int32] = np.zeros(need.max_rows, dtype=np.int32)
        self.owners: list[Sequence | None] = [None] * need.max_rows
        self.sources: dict[int, list[int]] = {}
        self._num_published = [0] * need.max_rows  # leading blocks of the table that need no look by `publish`
        self._rows: Rows | None = None
        self._prefix_queries = self._prefix_hits = self._num_copies = 0

    def scratch(self, running: list[Group], decode_rows: NDArray[np.int32]) -> PagedScratch:
        """A fresh budget; O(1). What earlier plans copied is copied by now: its sources are let go (law 9)."""
        for row in list(self.sources):
            self._unpin(row)
        return PagedScratch(self, decode_rows)

    # -- coming and going -----------------------------------------------------------------------------------------

    def open(self, seq: Sequence) -> int:
        """Start the table of `seq` with the blocks it hits; returns how many of its tokens they hold."""
        self._settle(seq, "open")
        blocks, num_hits = find_hits(self, seq)
        for block in blocks:
            self.pool.acquire(block)
        num_whole = num_hits // self.block_size
        self.took_hits(blocks, num_whole)
        self.tables[seq.row, : len(blocks)] = blocks
        self._set(seq.row, len(blocks), num_hits, num_hits)
        self._num_published[seq.row] = num_whole
        if self.caches:
            self._prefix_queries += seq.num_tokens
            self._prefix_hits += num_hits
        return num_hits

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Share the parent's blocks that cover the child's `num_computed` tokens (all of them while that is 0)."""
        self._resident(parent, "fork")
        covered = forked_tokens(parent, child)
        self._settle(child, "fork")
        length = -(-covered // self.block_size)
        blocks = self.tables[parent.row, :length]
        for block in blocks.tolist():
            self.pool.acquire(block)
        self.tables[child.row, :length] = blocks
        self._set(child.row, length, covered, 0)
        full = covered // self.block_size
        self._num_published[child.row] = min(self._num_published[parent.row], full)
        self.inherit(parent, child, full)

    def free(self, seq: Sequence) -> None:
        """Drop the table, tail first. Nothing happens when `seq` has none."""
        row = seq.row
        if row < 0 or self.owners[row] is not seq:
            return
        self._unpin(row)
        if row in self.host.tables:
            self.host.drop(row)
        else:
            self._release(row, 0)
        self.owners[row] = None
        self._set(row, 0, 0, 0)

    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        """Keep the blocks that hold the first `num_tokens` positions."""
        row, full = self._resident(seq, "shrink"), num_tokens // self.block_size
        self.truncate(seq, full)
        self._unpin(row)
        if num_tokens >= self.ends[row]:
            return
        self._release(row, -(-num_tokens // self.block_size))
        self.ends[row] = num_tokens
        self.hit_tokens[row] = min(self.hit_tokens[row], max(0, num_tokens - 1))
        self._num_published[row] = min(self._num_published[row], full)

    # -- growing --------------------------------------------------------------------------------------------------

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        """Cover `num_tokens` positions from `num_computed` on with blocks that only `seq` holds and nobody can hit."""
        row = self._resident(seq, "grow")
        start, length = seq.num_computed, int(self.lengths[row])
        first, last = start // self.block_size, -(-(start + num_tokens) // self.block_size)
        if num_tokens < 1 or start > length * self.block_size or last > self.tables.shape[1]:
            raise PluginContractError(
                f"law 3: {seq.request.id} grows by {num_tokens} tokens from position {start}, but its table holds "
                f"{length} of at most {self.tables.shape[1]} blocks of {self.block_size}"
            )
        copies_first = first < length and self._closed(int(self.tables[row, first]))
        num_fresh = max(0, last - length)
        if num_fresh + copies_first > self.pool.num_free:
            return None
        copies = self._make_writable(row, first) if first < length else []
        if num_fresh:
            self.tables[row, length:last] = [self.pool.allocate() for _ in range(num_fresh)]
            self.lengths[row] = last
        self.ends[row] = start + num_tokens
        return copies

    def grow_decodes(self, seqs: list[Sequence], rows: NDArray[np.int32]) -> list[BlockCopy] | None:
        """One token for every row, on columns: only rows that need a block cost Python. Atomic."""
        if not len(rows):
            return []
        nth, crosses, _, closed = columns = self.decode_columns(rows)
        num_fresh = int(np.count_nonzero(crosses))
        if num_fresh + self.num_copies(columns) > self.pool.num_free:
            return None
        assert self._rows is not None
        self.ends[rows] = self._rows.num_computed[rows] + 1
        if num_fresh:
            crossing = rows[crosses]
            self.tables[crossing, nth[crosses]] = [self.pool.allocate() for _ in range(num_fresh)]
            self.lengths[crossing] += 1
        copies: list[BlockCopy] = []
        for i in np.flatnonzero(closed):
            copies += self._make_writable(int(rows[i]), int(nth[i]))
        return copies

    def decode_columns(self, rows: NDArray[np.int32]) -> DecodeColumns:
        """Where the next token of each of `rows` (not empty) goes."""
        if self._rows is None:
            raise PluginContractError("rows decode though no table was ever opened")
        nth = self._rows.num_computed[rows] // self.block_size
        crosses = nth >= self.lengths[rows]
        blocks = self.tables[rows, nth]
        closed = ((self.pool.refs[blocks] > 1) | self.pool.frozen[blocks]) & ~crosses
        return DecodeColumns(nth, crosses, blocks, closed)

    def num_copies(self, columns: DecodeColumns) -> int:
        """Blocks that writing these columns copies: of k sharers of a block that all write, k - 1; if published, k."""
        if not columns.closed.any():
            return 0
        refs, frozen = self.pool.refs, self.pool.frozen
        writers = Counter(columns.blocks[columns.closed].tolist())
        return sum(count if frozen[block] else min(count, int(refs[block]) - 1) for block, count in writers.items())

    # -- prefix cache ---------------------------------------------------------------------------------------------

    @abstractmethod
    def find_blocks(self, seq: Sequence, limit: int) -> list[int]:
        """Published blocks that hold the beginning of `seq`, at most `limit`; asked only with the prefix cache on."""

    @abstractmethod
    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        """Of the published blocks that follow `blocks`, which begin `seq`, the one that begins most like `tokens`.

        And how many tokens they share; 0 when there is none.
        """

    @abstractmethod
    def enter(self, seq: Sequence, begin: int, end: int) -> None:
        """Publish blocks begin .. end - 1 of the table of `seq`: they are full and computed."""

    def publish(self, seq: Sequence) -> None:
        """Enter the full blocks below `num_computed`. Cheap when there are no new ones."""
        row = self._resident(seq, "publish")
        full, done = seq.num_computed // self.block_size, self._num_published[row]
        if self.caches and full > done:
            self.enter(seq, done, full)
            self._num_published[row] = full

    def took_hits(self, blocks: list[int], num_whole: int) -> None:
        """A newcomer just referenced `blocks`, all of them whole or all but the last. For indexes that must know."""

    def inherit(self, parent: Sequence, child: Sequence, num_full: int) -> None:
        """`child` begins with `num_full` full blocks of `parent`. For indexes that keep something per sequence."""

    def truncate(self, seq: Sequence, num_full: int) -> None:
        """Tokens of `seq` beyond `num_full` blocks may change. For indexes that keep something per sequence."""

    @abstractmethod
    def check_free(self) -> list[int]:
        """Assert the pool's own books (law 2); returns the blocks it calls free."""

    @abstractmethod
    def check_path(self, row: int, seq: Sequence) -> None:
        """Assert that the published blocks of a resident sequence are indexed under its tokens (law 14)."""

    @abstractmethod
    def check_index(self) -> None:
        """Assert that index and pool agree (laws 2, 4 and 14)."""

    # -- host tier ------------------------------------------------------------------------------------------------

    def swap_out(self, group: Group) -> list[SwapPair] | None:
        """Move the tables of all live branches to the host."""
        seqs = [seq for seq in group.live if self.on_device(seq)]
        if not seqs:
            raise PluginContractError(f"{group.id} has no table on the device that could be swapped out")
        tables = {seq.row: self.tables[seq.row, : self.lengths[seq.row]].tolist() for seq in seqs}
        distinct = dict.fromkeys(block for table in tables.values() for block in table)
        if len(distinct) > len(self.host.free):
            return None
        moved = {block: self.host.allocate() for block in distinct}
        for row, table in tables.items():
            self.host.put(row, [moved[block] for block in table])
            self._unpin(row)
            self._release(row, 0)
            self._num_published[row] = 0
        return [SwapPair(src, dst) for src, dst in moved.items()]

    def swap_in(self, group: Group) -> list[SwapPair] | None:
        """Move the tables of all live branches back to the device."""
        tables = {seq.row: self.host.tables[seq.row] for seq in group.live if self.on_host(seq)}
        if not tables:
            raise PluginContractError(f"{group.id} has no table on the host that could be swapped in")
        distinct = dict.fromkeys(block for table in tables.values() for block in table)
        if len(distinct) > self.pool.num_free:
            return None
        moved: dict[int, int] = {}
        for row, table in tables.items():
            for i, block in enumerate(table):
                if block in moved:
                    self.pool.acquire(moved[block])
                else:
                    moved[block] = self.pool.allocate()
                self.tables[row, i] = moved[block]
            self.lengths[row] = len(table)
            self.host.drop(row)
        return [SwapPair(src, dst) for src, dst in moved.items()]

    # -- questions ------------------------------------------------------------------------------------------------

    def on_device(self, seq: Sequence) -> bool:
        """Whether `seq` has a table on the device (it may be empty)."""
        return seq.row >= 0 and self.owners[seq.row] is seq and seq.row not in self.host.tables

    def on_host(self, seq: Sequence) -> bool:
        """Whether `seq` is swapped out."""
        return seq.row >= 0 and self.owners[seq.row] is seq and seq.row in self.host.tables

    def stats(self) -> BlockStats:
        """A snapshot from running counts. Right between steps; within one, the waste includes scheduled slots."""
        pool = self.pool
        waste = 0
        if self._rows is not None:
            held = self.lengths > 0
            waste = int(self.lengths.sum()) * self.block_size - int(self._rows.num_computed[held].sum())
        return BlockStats(
            total=pool.num_blocks,
            free=pool.num_free,
            cached_free=pool.num_cached_free,
            shared=pool.num_shared,
            host_total=self.host.num_blocks,
            host_free=len(self.host.free),
            tail_waste_slots=waste,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            num_copies=self._num_copies,
            num_evictions=pool.num_evictions,
            saved=pool.num_saved,
            ref_counts=tuple(pool.histogram[1:]),
        )

    def marks(self) -> BlockMarks:
        """What the pools know of each block."""
        return BlockMarks(self.pool.refs.copy(), self.pool.frozen.copy(), np.array(self.host.refs, dtype=np.int32))

    def check(self) -> None:
        """Assert the laws over the whole pool: O(blocks + tokens)."""
        check_laws(self)

    # -- small parts ----------------------------------------------------------------------------------------------

    def _resident(self, seq: Sequence, verb: str) -> int:
        if not self.on_device(seq):
            where = "on the host" if self.on_host(seq) else "nowhere (open it first)"
            raise PluginContractError(
                f"cannot {verb} branch {seq.index} of {seq.request.id}: its table (row {seq.row}) is {where}"
            )
        return seq.row

    def _settle(self, seq: Sequence, verb: str) -> None:
        if seq.row < 0 or seq.rows is None:
            raise PluginContractError(f"cannot {verb} branch {seq.index} of {seq.request.id}: it has no table row")
        if (owner := self.owners[seq.row]) is not None:
            raise PluginContractError(
                f"cannot {verb} branch {seq.index} of {seq.request.id}: table row {seq.row} belongs to branch "
                f"{owner.index} of {owner.request.id} until that is freed"
            )
        self._rows = seq.rows
        self.owners[seq.row] = seq

    def _set(self, row: int, length: int, end: int, hit_tokens: int) -> None:
        self.lengths[row], self.ends[row], self.hit_tokens[row] = length, end, hit_tokens

    def _release(self, row: int, keep: int) -> None:
        self.pool.release_all(reversed(self.tables[row, keep : self.lengths[row]].tolist()))
        self.lengths[row] = keep

    def _closed(self, block: int) -> bool:
        return bool(self.pool.refs[block] > 1 or self.pool.frozen[block])

    def _make_writable(self, row: int, index: int) -> list[BlockCopy]:
        block = int(self.tables[row, index])
        if not self._closed(block):
            return []
        copy = self.pool.allocate()
        self.tables[row, index] = copy
        if self.pool.refs[block] > 1:
            self.pool.release(block)  # another table still holds it: the source outlives the copy (law 9)
        else:
            self.sources.setdefault(row, []).append(block)
        self._num_copies += 1
        return [BlockCopy(block, copy)]

    def _unpin(self, row: int) -> None:
        if row in self.sources:
            self.pool.release_all(self.sources.pop(row))
