"""Overlapped: any executor that runs a step when it is submitted, as one that takes two steps at a time.

It does what a device behind a queue does: `submit` only notes the plan and what it needs of the block tables; the step
runs when it is collected, and what the step before drew is put in its place by then. Meanwhile it audits the engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.paging.allocator import PagedAllocator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.engine.engine import Engine


class OverlappedTicket(Ticket):
    """A step that has not run. `tables` are all block tables as it found them; `groups` who owns its rows.

    `reads` and `writes` are slots (block * block_size + offset); `draws_of` is the step submitted before, if it was in
    flight.
    """

    __slots__ = ("draws_of", "groups", "reads", "tables", "writes")

    def __init__(self, plan: StepPlan, tables: NDArray[np.int32], block_size: int, draws_of: StepPlan | None) -> None:
        super().__init__(plan)
        self.tables = tables
        self.draws_of = draws_of
        self.groups: list[object] = []
        self.reads: list[set[int]] = []  # of each sequence
        self.writes: list[set[int]] = []
        for table, length, num in zip(tables[plan.rows], plan.seq_lens, np.diff(plan.query_start), strict=True):
            slots = [int(table[i // block_size]) * block_size + i % block_size for i in range(length)]
            self.reads.append(set(slots[: length - num]))
            self.writes.append(set(slots[length - num :]))
        self.reads.append({slot for src, _ in plan.copies for slot in _slots(src, block_size)})
        moved_in = [dst for _, dst in (*plan.copies, *plan.swap_in)]
        self.writes.append({slot for dst in moved_in for slot in _slots(dst, block_size)})


class Overlapped(Executor):
    """Two tickets over `inner`. `watch` the engine for the audit of blocks; tokens' sources are always checked.

    `num_open` is the number of tickets, `most_open` the most there ever were, `num_ahead` the steps that were submitted
    while another one was in flight.
    """

    max_in_flight = 2

    def __init__(self, inner: Executor, block_size: int) -> None:
        self.inner = inner
        self.most_open = self.num_ahead = 0
        self.plans: list[StepPlan] = []
        self.keep_plans = False
        self._block_size = block_size
        self._open: deque[OverlappedTicket] = deque()
        self._last: tuple[StepPlan, StepResult] | None = None
        self._engine: Engine | None = None

    @property
    def num_open(self) -> int:
        """Steps submitted and not collected."""
        return len(self._open)

    def watch(self, engine: Engine) -> None:
        """Audit this engine: what steps in flight use is neither freed nor written nor found by others."""
        self._engine = engine

    def capacity(self) -> KVCapacity:
        """The inner one's."""
        return self.inner.capacity()

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """The inner executor sees tables as they were when the step it runs was submitted."""
        self._tables, self._seen = tables, np.full_like(tables, -1)
        self.inner.start(num_blocks, num_host_blocks, self._seen)

    def submit(self, plan: StepPlan) -> Ticket:
        """Note the step; it begins when it is collected."""
        assert len(self._open) < 2, "a third step in flight"
        before = self._open[-1].plan if self._open else None
        ticket = OverlappedTicket(plan, self._tables.copy(), self._block_size, before)
        self._check_sources(ticket)
        if self._engine is not None:
            owners = self._engine._ledger.queues.group_of_row
            ticket.groups = [owners[row] for row in plan.rows]
            for other in self._open:
                _check_apart(other, ticket)
        self._open.append(ticket)
        self.num_ahead += len(self._open) > 1
        self.most_open = max(self.most_open, len(self._open))
        if self.keep_plans:
            self.plans.append(plan)
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        """Run the oldest step."""
        assert ticket is self._open.popleft(), "collected out of order"
        assert isinstance(ticket, OverlappedTicket)
        self._check_held(ticket)
        plan = ticket.plan
        self._seen[:] = ticket.tables
        if plan.token_source is not None:
            assert self._last is not None
            drawn = self._last[1].tokens[plan.token_source, 0]
            plan = replace(plan, token_ids=np.where(plan.token_source >= 0, drawn, plan.token_ids), token_source=None)
        result = self.inner.collect(self.inner.submit(plan))
        self._last = plan, replace(result)  # the engine may take stale draws out of what it gets
        return result

    def close(self) -> None:
        """Steps in flight are dropped."""
        self._open.clear()
        self.inner.close()

    def _check_sources(self, ticket: OverlappedTicket) -> None:
        """Every token whose draw is in flight says so, and no other does."""
        plan, before = ticket.plan, ticket.draws_of
        rows = np.repeat(plan.rows, np.diff(plan.query_start)).tolist()
        drawn = {} if before is None else {
            (int(row), int(position)): draw
            for draw, (row, position) in enumerate(zip(before.sample_rows, before.sample_positions, strict=True))
        }  # fmt: skip
        expected = [drawn.get(place, -1) for place in zip(rows, plan.positions.tolist(), strict=True)]
        source = np.full(plan.num_tokens, -1) if plan.token_source is None else plan.token_source
        assert source.tolist() == expected, f"step {plan.step}: sources {source.tolist()}, they are {expected}"

    def _check_held(self, ticket: OverlappedTicket) -> None:
        """No block that the step uses is free before it was collected; only a PagedAllocator can be asked."""
        allocator = None if self._engine is None else self._engine._ledger.allocator
        if not isinstance(allocator, PagedAllocator):
            return
        refs = allocator.pool.refs
        used = {slot // self._block_size for slots in (*ticket.reads, *ticket.writes) for slot in slots}
        freed = [block for block in used if refs[block] == 0]
        assert not freed, f"blocks {freed} were freed while step {ticket.plan.step} was in flight"


def _check_apart(older: OverlappedTicket, newer: OverlappedTicket) -> None:
    """What the newer step writes the older does not use, and what it reads the older does not write.

    Branches of one group may: they take blocks over from each other, and steps run in order.
    """
    for group, read, written in zip((*older.groups, None), older.reads, older.writes, strict=True):
        for other, reads, writes in zip((*newer.groups, None), newer.reads, newer.writes, strict=True):
            if group is not None and group is other:
                continue
            both = writes & (read | written)
            assert not both, f"step {newer.plan.step} writes slots {both}, which step {older.plan.step} still uses"
            both = set() if other is None else reads & written
            assert not both, f"step {newer.plan.step} found slots {both}, which step {older.plan.step} still writes"


def _slots(block: int, block_size: int) -> range:
    return range(block * block_size, (block + 1) * block_size)
