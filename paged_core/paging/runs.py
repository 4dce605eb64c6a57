"""RunAllocator: every sequence in one run of neighbouring blocks, set aside when it first grows.

How systems before PagedAttention kept keys and values (paper, sections 3.1 and 6.1). Nothing is shared: a branch has
a run of its own and copies what it has in common with its parent. The runs of all branches a request will have are set
aside with the first, so that a request that was admitted never waits for memory. Should a sequence outgrow its run it
moves to one of twice the size.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.allocator import Allocator, AllocatorNeed, BlockCopy, BlockMarks, BlockStats, SwapPair
from paged_core.errors import PluginContractError
from paged_core.paging.buddy import Buddy, Chunk, order_for
from paged_core.paging.rules import forked_tokens
from paged_core.paging.run_scratch import RunScratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.request import Group, Request, Rows, Sequence


class RunAllocator(Allocator):
    """Subclasses say how many slots a sequence asks for (`reserve`). No prefix cache, no host tier.

    capacity  int32 [max_rows]: slots of the row's run; 0 without one
    asked     int32 [max_rows]: slots it asked for, before its run was rounded up to a power of two of blocks
    owners    the sequence whose table row it is, or None
    runs      row -> its run
    spares    request -> runs set aside for branches to come; the key is there from the first run to the last
    origins   row -> the run where the tokens of a branch lie that has not grown since it was forked
    held      row -> runs it no longer needs and that may still be read: until the next scratch, or until it leaves
    """

    def __init__(self, need: AllocatorNeed) -> None:
        self.block_size = need.block_size
        self.num_blocks = need.num_blocks
        self.max_len = need.max_len
        self._num_host_blocks = need.num_host_blocks
        self.tables: NDArray[np.int32] = np.zeros((need.max_rows, -(-need.max_len // need.block_size)), dtype=np.int32)
        self.capacity: NDArray[np.int32] = np.zeros(need.max_rows, dtype=np.int32)
        self.asked: NDArray[np.int32] = np.zeros(need.max_rows, dtype=np.int32)
        self.buddy = Buddy(need.num_blocks)
        self.owners: list[Sequence | None] = [None] * need.max_rows
        self.runs: dict[int, Chunk] = {}
        self.spares: dict[str, list[Chunk]] = {}
        self.origins: dict[int, Chunk] = {}
        self.held: dict[int, list[Chunk]] = {}
        self._members: dict[str, int] = {}  # open tables by request
        self._rows: Rows | None = None
        self._num_copies = 0

    @abstractmethod
    def reserve(self, request: Request) -> int:
        """Slots that each branch of `request` asks for, prompt included. It gets what its tokens need in any case."""

    def refuses(self, request: Request) -> str | None:
        """A request whose runs the empty pool has no place for."""
        num, order = request.params.num_sequences, self._order(request, len(request.prompt_token_ids))
        if Buddy(self.num_blocks).fits([order] * num):
            return None
        return (
            f"{num} run(s) of {1 << order} blocks of {self.block_size} are set aside for such a request, and the pool "
            f"of {self.num_blocks} has no place for them: give it more with --kv-memory, or lower --max-model-len"
        )

    def scratch(self, running: list[Group], decode_rows: NDArray[np.int32]) -> RunScratch:
        """A fresh budget. What earlier plans copied is copied by now: sources are let go (law 9)."""
        for row in list(self.held):
            self._let_go(row)
        return RunScratch(self, running, decode_rows)

    # -- coming and going -----------------------------------------------------------------------------------------

    def open(self, seq: Sequence) -> int:
        """An empty table: the run is found when it grows. Nothing is ever hit."""
        self._settle(seq, "open")
        return 0

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` reads its parent's run until it grows, and then takes its tokens with it into one of its own."""
        row = self._resident(parent, "fork")
        covered = forked_tokens(parent, child)
        self._settle(child, "fork")
        length = -(-covered // self.block_size)
        self.tables[child.row, :length] = self.tables[row, :length]
        if covered:
            self.origins[child.row] = self._place(row)

    def free(self, seq: Sequence) -> None:
        """Drop the table and give back the run. Nothing happens when `seq` has none.

        A beam's run is kept for the branch that takes the beam's place.
        """
        row, request = seq.row, seq.request
        if row < 0 or self.owners[row] is not seq:
            return
        self.owners[row] = None
        self.origins.pop(row, None)
        run = self.runs.pop(row, None)
        self.capacity[row] = self.asked[row] = 0
        self._members[request.id] -= 1
        last = not self._members[request.id]
        if run is not None and request.params.use_beam_search and not last and run not in self.origins.values():
            self.spares[request.id].append(run)
        elif run is not None:
            self.held.setdefault(row, []).append(run)
        self._let_go(row)
        if last:
            del self._members[request.id]
            self.buddy.release_all(self.spares.pop(request.id, ()))

    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        """Nothing is given back: the run was set aside for tokens to come."""
        self._let_go(self._resident(seq, "shrink"))

    # -- growing --------------------------------------------------------------------------------------------------

    def order_of(self, seq: Sequence, end: int) -> int:
        """Order of the run that holds `end` positions: as large as asked for, if the pool has any such run."""
        return self._order(seq.request, max(end, seq.num_tokens))

    def claims(self, request: Request, order: int, spares: list[int] | None) -> list[int]:
        """Orders of the runs that leave the pool when a branch of `request` needs one of `order`.

        `spares` are orders of runs set aside for the request, None when it has no run yet.
        """
        if spares is None:
            return [order] * request.params.num_sequences
        return [] if any(spare >= order for spare in spares) else [order]

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        """Find a run when there is none or it is too short; what was computed comes along."""
        row, start = self._resident(seq, "grow"), seq.num_computed
        end = start + num_tokens
        if num_tokens < 1 or end > self.tables.shape[1] * self.block_size:
            raise PluginContractError(
                f"law 3: {seq.request.id} grows by {num_tokens} tokens from position {start}, but its table has "
                f"{self.tables.shape[1]} blocks of {self.block_size}"
            )
        if end <= self.capacity[row]:
            return []
        order = self.order_of(seq, end)
        made = self.buddy.allocate_all(self.claims(seq.request, order, self.orders_aside(seq.request.id)))
        if made is None:
            return None
        spares = self.spares.setdefault(seq.request.id, [])
        spares += made
        run = next(spare for spare in spares if spare.order >= order)
        spares.remove(run)
        return self._move(seq, run)

    def grow_decodes(self, seqs: list[Sequence], rows: NDArray[np.int32]) -> list[BlockCopy] | None:
        """One token for every row: only those at the end of their run cost anything."""
        if not len(rows):
            return []
        late = self.late(rows)
        return super().grow_decodes([seqs[i] for i in late], rows[late]) if len(late) else []

    def late(self, rows: NDArray[np.int32]) -> NDArray[np.intp]:
        """Which of `rows` (not empty) have no room for their next token."""
        if self._rows is None:
            raise PluginContractError("rows decode though no table was ever opened")
        return np.flatnonzero(self._rows.num_computed[rows] >= self.capacity[rows])

    def publish(self, seq: Sequence) -> None:
        """There is no prefix cache."""
        self._resident(seq, "publish")

    def swap_out(self, group: Group) -> list[SwapPair] | None:
        """There is no host tier: no room."""
        return None

    def swap_in(self, group: Group) -> list[SwapPair] | None:
        """Nothing was ever swapped out."""
        raise PluginContractError(f"{group.id} has no table on the host that could be swapped in")

    # -- questions ------------------------------------------------------------------------------------------------

    def orders_aside(self, request_id: str) -> list[int] | None:
        """Orders of the runs set aside for branches to come; None before the request's first run."""
        spares = self.spares.get(request_id)
        return None if spares is None else [run.order for run in spares]

    def slots_of(self, seq: Sequence) -> int:
        """Slots of the run of `seq`; 0 without one."""
        return int(self.capacity[seq.row]) if seq.row >= 0 and self.owners[seq.row] is seq else 0

    def runs_of(self, group: Group) -> list[Chunk]:
        """What goes back to the pool when all live branches of `group` leave."""
        rows = [seq.row for seq in group.live if seq.row >= 0 and self.owners[seq.row] is seq]
        found = [self.runs[row] for row in rows if row in self.runs]
        found += [run for row in rows for run in self.held.get(row, ())]
        return found + (self.spares.get(group.id, []) if len(rows) == self._members.get(group.id) else [])

    def held_slots(self, rows: NDArray[np.int32], computed: NDArray[np.int32]) -> NDArray[np.int32]:
        """What each row asked for. What its run was rounded up by is nobody's: lost, as free pieces are."""
        return np.maximum(self.asked[rows], computed)

    def stats(self) -> BlockStats:
        """A snapshot. Waste is every slot of a run that holds no token, runs of branches to come included."""
        used = self.num_blocks - self.buddy.num_free
        filled = 0 if self._rows is None else int(self._rows.num_computed[self.capacity > 0].sum())
        return BlockStats(
            total=self.num_blocks,
            free=self.buddy.num_free,
            cached_free=0,
            shared=0,
            host_total=0,
            host_free=0,
            tail_waste_slots=used * self.block_size - filled,
            prefix_queries=0,
            prefix_hits=0,
            num_copies=self._num_copies,
            num_evictions=0,
        )

    def marks(self) -> BlockMarks:
        """Every block of a run is held, with a token or without."""
        refs = np.zeros(self.num_blocks, dtype=np.int32)
        for run in self._taken():
            refs[run.start : run.start + run.size] = 1
        return BlockMarks(refs, np.zeros(refs.shape, dtype=np.bool_), np.zeros(self._num_host_blocks, dtype=np.int32))

    def check(self) -> None:
        """Assert the buddy laws, and that every table is its run."""
        self.buddy.check(self._taken())
        for row, owner in enumerate(self.owners):
            run, slots = self.runs.get(row), int(self.capacity[row])
            if slots != (run.size * self.block_size if run else 0) or (owner is None and (run or row in self.held)):
                raise PluginContractError(f"law 1: row {row} of {owner} has {slots} slots and the run {run}")
            if owner is None:
                continue
            place = self.origins.get(row, run)
            length = -(-owner.num_computed // self.block_size)
            if run is not None:
                length = min(run.size, self.tables.shape[1])
            seen = self.tables[row, :length].tolist()
            if length and (place is None or seen != list(place.blocks)[:length]):
                raise PluginContractError(f"contiguity: the table of row {row} reads {seen}, its run is {place}")

    # -- small parts ----------------------------------------------------------------------------------------------

    def _taken(self) -> list[Chunk]:
        kept = (*self.spares.values(), *self.held.values())
        return [*self.runs.values(), *(run for runs in kept for run in runs)]

    def _order(self, request: Request, num_tokens: int) -> int:
        size = self.block_size
        asked = order_for(-(-min(self.reserve(request), self.max_len) // size))
        return max(order_for(-(-num_tokens // size)), min(asked, self.buddy.top))

    def _move(self, seq: Sequence, run: Chunk) -> list[BlockCopy]:
        row, old = seq.row, self.runs.get(seq.row)
        source = self.origins.pop(row, old)
        if old is not None:
            self.held.setdefault(row, []).append(old)
        self.runs[row] = run
        self.capacity[row] = run.size * self.block_size
        self.asked[row] = min(max(self.reserve(seq.request), seq.num_tokens), self.max_len, self.capacity[row])
        length = min(run.size, self.tables.shape[1])
        self.tables[row, :length] = np.arange(run.start, run.start + length, dtype=np.int32)
        if source is None:
            return []
        num = -(-seq.num_computed // self.block_size)
        self._num_copies += num
        return [BlockCopy(source.start + i, run.start + i) for i in range(num)]

    def _place(self, row: int) -> Chunk:
        return self.origins[row] if row in self.origins else self.runs[row]

    def _let_go(self, row: int) -> None:
        """Runs that `row` held go back to the pool, or to a branch that has yet to read them."""
        for run in self.held.pop(row, ()):
            reader = next((other for other, origin in self.origins.items() if origin == run), None)
            if reader is None:
                self.buddy.release(run)
            else:
                self.held.setdefault(reader, []).append(run)

    def _resident(self, seq: Sequence, verb: str) -> int:
        if seq.row < 0 or self.owners[seq.row] is not seq:
            raise PluginContractError(f"cannot {verb} branch {seq.index} of {seq.request.id}: it has no table")
        return seq.row

    def _settle(self, seq: Sequence, verb: str) -> None:
        if seq.row < 0 or seq.rows is None or self.owners[seq.row] is not None:
            raise PluginContractError(
                f"cannot {verb} branch {seq.index} of {seq.request.id}: it has no table row, or row {seq.row} is taken"
            )
        self._rows = seq.rows
        self.owners[seq.row] = seq
        self._members[seq.request.id] = self._members.get(seq.request.id, 0) + 1
