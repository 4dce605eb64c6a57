"""RunScratch: a budget of runs, planned on a copy of the pool's free chunks; nothing is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paged_core.api.allocator import Scratch
from paged_core.api.request import GroupState, share_out, spread
from paged_core.errors import PluginContractError
from paged_core.paging.rules import check_victim

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.request import Group
    from paged_core.paging.buddy import Buddy, Chunk
    from paged_core.paging.runs import RunAllocator


class _Taken(NamedTuple):
    num_tokens: int
    chunks: list[Chunk]


class RunScratch(Scratch):
    """What a decision has taken and given back, on a shadow free list that is copied when it first changes.

    Free blocks that lie in pieces are no room for a run: what has no place needs more blocks than are free.
    """

    __slots__ = ("_allocator", "_decode_rows", "_decodes_taken", "_running", "_shadow", "_taken", "_victims")

    def __init__(self, allocator: RunAllocator, running: list[Group], decode_rows: NDArray[np.int32]) -> None:
        self._allocator = allocator
        self._running = running
        self._decode_rows = decode_rows
        self._decodes_taken = False
        self._shadow: Buddy | None = None
        self._taken: dict[Group, _Taken] = {}
        self._victims: set[Group] = set()

    @property
    def free(self) -> int:
        """Blocks free after everything taken and given back, in however many pieces."""
        return self._buddy.num_free

    @property
    def total(self) -> int:
        """Blocks of the pool."""
        return self._allocator.num_blocks

    def gap(self, group: Group) -> int:
        """`group.gap`: nothing is ever hit."""
        return group.gap

    # -- taking ---------------------------------------------------------------------------------------------------

    def need(self, group: Group, num_tokens: int) -> int:
        """Blocks of the runs that `num_tokens` more tokens take; more than are free when there is no place for them."""
        before, orders = self._more(group, num_tokens)
        return self._price(before.chunks, orders)

    def take(self, group: Group, num_tokens: int) -> bool:
        """Take those runs, if they fit."""
        if group in self._victims:
            raise PluginContractError(f"law 11: {group.id} was given back in this plan and cannot take blocks")
        before, orders = self._more(group, num_tokens)
        chunks = before.chunks
        if orders != [chunk.order for chunk in chunks]:
            shadow = self._buddy.copy()
            shadow.release_all(chunks)
            made = shadow.allocate_all(orders)
            if made is None:
                return False
            self._shadow, chunks = shadow, made
        self._taken[group] = _Taken(before.num_tokens + num_tokens, chunks)
        return True

    def need_decodes(self) -> int:
        """Blocks that `take_decodes` would take now: none, but for sequences at the end of their run."""
        return 0 if self._decodes_taken else self._price([], self._decode_orders())

    def take_decodes(self) -> bool:
        """One token for every branch that decodes and neither took nor left."""
        orders = [] if self._decodes_taken else self._decode_orders()
        if orders:
            shadow = self._buddy.copy()
            if shadow.allocate_all(orders) is None:
                return False
            self._shadow = shadow
        self._decodes_taken = True
        return True

    def give_back(self, group: Group) -> int:
        """Evict `group`: its runs, and those set aside for its branches, are free."""
        check_victim(group, self._victims, took=group in self._taken or self._took_decode(group))
        self._victims.add(group)
        chunks = self._allocator.runs_of(group)
        if chunks:
            self._shadow = self._buddy.copy()
            self._shadow.release_all(chunks)
        return sum(chunk.size for chunk in chunks)

    # -- counting -------------------------------------------------------------------------------------------------

    @property
    def _buddy(self) -> Buddy:
        return self._allocator.buddy if self._shadow is None else self._shadow

    def _price(self, before: list[Chunk], orders: list[int]) -> int:
        if orders == [chunk.order for chunk in before]:
            return 0
        size = sum(1 << order for order in orders) - sum(chunk.size for chunk in before)
        trial = self._buddy
        if before:
            trial = trial.copy()
            trial.release_all(before)
        return size if trial.fits(orders) else max(size, self.free + 1)

    def _more(self, group: Group, num_tokens: int) -> tuple[_Taken, list[int]]:
        """What `group` has taken, and the orders of all runs it takes with `num_tokens` more."""
        before = self._taken.get(group, _Taken(0, []))
        if not 1 <= num_tokens <= group.gap - before.num_tokens or self._took_decode(group):
            raise PluginContractError(f"the gap rule: {num_tokens} more tokens of {group.id} are not in 1 .. its gap")
        return before, self._orders(group, before.num_tokens + num_tokens)

    def _orders(self, group: Group, num_tokens: int) -> list[int]:
        allocator, request = self._allocator, group.request
        spares = allocator.orders_aside(request.id)
        found: list[int] = []
        parts = spread(group.live)
        for (seq, own), (_, num) in zip(parts, share_out(parts, num_tokens), strict=True):
            end = seq.num_tokens - own + num
            if not num or end <= allocator.slots_of(seq):
                continue
            order = allocator.order_of(seq, end)
            claims = allocator.claims(request, order, spares)
            found += claims
            spares = [*(spares or []), *claims]
            spares.remove(next(spare for spare in spares if spare >= order))
        return found

    def _decode_orders(self) -> list[int]:
        rows, allocator = self._decode_rows, self._allocator
        if not len(rows) or not len(allocator.late(rows)):
            return []
        return [
            order
            for group in self._running
            if group.decoding and group not in self._victims and group not in self._taken
            for order in self._orders(group, len(group.live))
        ]

    def _took_decode(self, group: Group) -> bool:
        return (
            self._decodes_taken and group.state is GroupState.RUNNING and group not in self._victims and group.decoding
        )
