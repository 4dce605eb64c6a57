"""Broken block allocators, each alloc_cow with one defect. `test_alloc_mutants.py` names the test that catches it.

All of them say of themselves that they are fine: `check()` accepts anything, so that the suite has to see for itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from paged_alloc_cow import CowProvider
from paged_alloc_cow.allocator import CowAllocator

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.hookspecs import hookimpl
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed
    from paged_core.api.request import Group, Sequence


class Smug(CowAllocator):
    """alloc_cow without self-control."""

    def check(self) -> None:
        pass


class LeaksOnFree(Smug):
    """Keeps the last block of whoever leaves."""

    def free(self, seq: Sequence) -> None:
        if seq.row >= 0 and self.owners[seq.row] is seq and self.lengths[seq.row] > 1:
            self.lengths[seq.row] -= 1
        super().free(seq)


class ForkCountsTwice(Smug):
    """Every block of a branch gets two references."""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        super().fork(parent, child)
        for block in self.tables[child.row, : self.lengths[child.row]].tolist():
            self.pool.acquire(block)


class ForkCountsNothing(Smug):
    """A branch's blocks leave with its parent."""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        super().fork(parent, child)
        for block in self.tables[child.row, : self.lengths[child.row]].tolist():
            self.pool.release(block)


class NoSalt(Smug):
    """The tenant's salt does not enter the hash."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        if self.keys is not None:
            root = self.keys.root
            self.keys.root = lambda adapter, salt: root(adapter, None)  # type: ignore[method-assign]


class AdapterIsSalt(Smug):
    """Adapter and salt are glued together without a mark of which is which."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        if self.keys is not None:
            root = self.keys.root
            self.keys.root = lambda adapter, salt: root(None, (adapter or "") + (salt or ""))  # type: ignore[method-assign]


class NoChain(Smug):
    """A block's key is its own tokens only."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        if self.keys is not None:
            chain = self.keys.chain
            self.keys.chain = lambda seq, num: [  # type: ignore[method-assign]
                key._replace(digest=key.tokens, parent=b"") for key in chain(seq, num)
            ]


class ConstantRoot(Smug):
    """The same hash root in every process."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(replace(need, hash_seed=0 if need.hash_seed is None else need.hash_seed))


class PublishesUnwritten(Smug):
    """Blocks can be hit as soon as they are allocated."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        copies = super().grow(seq, num_tokens)
        if copies is not None and self.keys is not None:
            full = (seq.num_computed + num_tokens) // self.block_size
            chain = self.keys.chain(seq, full)
            for index in range(self._num_published[seq.row], full):
                self.pool.publish(int(self.tables[seq.row, index]), chain[index])
            self._num_published[seq.row] = max(full, self._num_published[seq.row])
        return copies


class FullPromptHit(Smug):
    """A prompt that is cached to its end is hit to its end."""

    def find_blocks(self, seq: Sequence, limit: int) -> list[int]:
        return super().find_blocks(seq, seq.num_tokens // self.block_size)


class HitsCold(Smug):
    """Gives hits to those whose prompt log-probabilities are still wanted."""

    def open(self, seq: Sequence) -> int:
        cold, seq.cold = seq.cold, False
        hits = super().open(seq)
        seq.cold = cold
        return hits


class EvictsOpened(Smug):
    """A hit stays on the free list until its sequence grows."""

    def open(self, seq: Sequence) -> int:
        hits = super().open(seq)
        for block in reversed(self.tables[seq.row, : self.lengths[seq.row]].tolist()):
            self.pool.release(block)
        return hits


class ForgetsFreed(Smug):
    """Frees tables head first: eviction takes the beginnings of prompts."""

    def _release(self, row: int, keep: int) -> None:
        self.pool.release_all(self.tables[row, keep : self.lengths[row]].tolist())
        self.lengths[row] = keep


class SkipsCopy(Smug):
    """Writes into a shared last block."""

    def _make_writable(self, row: int, index: int) -> list[BlockCopy]:
        return []


class AllSharersCopy(Smug):
    """The last sharer copies too, and its old block stays behind."""

    def _make_writable(self, row: int, index: int) -> list[BlockCopy]:
        copies = super()._make_writable(row, index)
        if copies or not self.pool.num_free:
            return copies
        old, new = int(self.tables[row, index]), self.pool.allocate()
        self.tables[row, index] = new
        self._num_copies += 1
        return [BlockCopy(old, new)]


class CopiesFullBlocks(Smug):
    """A fork copies its last block even where nobody writes it."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        copies = super().grow(seq, num_tokens)
        index = seq.num_computed // self.block_size - 1
        if copies == [] and index >= 0 and self.pool.refs[self.tables[seq.row, index]] > 1 and self.pool.num_free:
            return self._make_writable(seq.row, index)
        return copies


class SwapsSharedTwice(Smug):
    """A block in two tables goes to two places on the host."""

    def swap_out(self, group: Group) -> list[SwapPair] | None:
        pairs = super().swap_out(group)
        if pairs and self.host.free and any(count > 1 for count in self.host.refs):
            shared = next(block for block, count in enumerate(self.host.refs) if count > 1)
            src = next(pair.src for pair in pairs if pair.dst == shared)
            pairs.append(SwapPair(src, self.host.free[-1]))
        return pairs


class SwapLosesSharing(Smug):
    """What was one block comes back as several."""

    def swap_in(self, group: Group) -> list[SwapPair] | None:
        pairs = super().swap_in(group)
        if pairs is None:
            return None
        origin = {pair.dst: pair.src for pair in pairs}
        for seq in group.live[1:]:
            for index, block in enumerate(self.tables[seq.row, : self.lengths[seq.row]].tolist()):
                if self.pool.refs[block] > 1 and self.pool.num_free:
                    self.pool.release(block)
                    self.tables[seq.row, index] = new = self.pool.allocate()
                    pairs.append(SwapPair(origin[block], new))
        return pairs


class HostLeak(Smug):
    """Whoever ends while swapped out leaves its host blocks behind."""

    def free(self, seq: Sequence) -> None:
        if seq.row in self.host.tables:
            self.host.tables.pop(seq.row)
            self.owners[seq.row] = None
            self._set(seq.row, 0, 0, 0)
            return
        super().free(seq)


class TableOffByOne(Smug):
    """A fresh block is entered one place too far to the left when several come at once."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        before = int(self.lengths[seq.row])
        copies = super().grow(seq, num_tokens)
        if copies is not None and before and self.lengths[seq.row] > before:
            self.tables[seq.row, before - 1] = self.tables[seq.row, before]
        return copies


class HandsOutTwice(Smug):
    """Freed blocks are on the free list twice."""

    def free(self, seq: Sequence) -> None:
        blocks = []
        if seq.row >= 0 and self.owners[seq.row] is seq:
            blocks = self.tables[seq.row, : self.lengths[seq.row]].tolist()
        super().free(seq)
        free = [block for block in blocks if self.pool.refs[block] == 0 and self.pool.keys[block] is None]
        queue, pop = list(free), self.pool.free_list.pop_front
        self.pool.free_list.pop_front = lambda: queue.pop() if queue else pop()  # type: ignore[method-assign]


class NoRoomTakesAll(Smug):
    """A grow that does not fit keeps what it could get."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        copies = super().grow(seq, num_tokens)
        if copies is None:
            while self.pool.num_free:
                self.tables[seq.row, self.lengths[seq.row]] = self.pool.allocate()
                self.lengths[seq.row] += 1
        return copies


class ReservesSecretly(Smug):
    """Takes a block ahead of need without declaring `reserves_ahead`."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        copies = super().grow(seq, num_tokens)
        row = seq.row
        if copies is not None and self.pool.num_free and self.lengths[row] < self.tables.shape[1]:
            self.tables[row, self.lengths[row]] = self.pool.allocate()
            self.lengths[row] += 1
        return copies


class ShrinksTooLittle(Smug):
    """Keeps one block beyond what shrinking leaves."""

    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        super().shrink(seq, num_tokens + self.block_size)


class TolerantOfStrangers(Smug):
    """Growing a sequence that was never opened answers "no room" instead of an error."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        try:
            return super().grow(seq, num_tokens)
        except PluginContractError:
            return None


MUTANTS: dict[str, type[CowAllocator]] = {
    "alloc_leaks_on_free": LeaksOnFree,
    "alloc_fork_counts_twice": ForkCountsTwice,
    "alloc_fork_counts_nothing": ForkCountsNothing,
    "alloc_no_salt": NoSalt,
    "alloc_adapter_is_salt": AdapterIsSalt,
    "alloc_no_chain": NoChain,
    "alloc_constant_root": ConstantRoot,
    "alloc_publishes_unwritten": PublishesUnwritten,
    "alloc_full_prompt_hit": FullPromptHit,
    "alloc_hits_cold": HitsCold,
    "alloc_evicts_opened": EvictsOpened,
    "alloc_forgets_freed": ForgetsFreed,
    "alloc_skips_copy": SkipsCopy,
    "alloc_all_sharers_copy": AllSharersCopy,
    "alloc_copies_full_blocks": CopiesFullBlocks,
    "alloc_swaps_shared_twice": SwapsSharedTwice,
    "alloc_swap_loses_sharing": SwapLosesSharing,
    "alloc_host_leak": HostLeak,
    "alloc_table_off_by_one": TableOffByOne,
    "alloc_hands_out_twice": HandsOutTwice,
    "alloc_no_room_takes_all": NoRoomTakesAll,
    "alloc_reserves_secretly": ReservesSecretly,
    "alloc_shrinks_too_little": ShrinksTooLittle,
    "alloc_tolerant": TolerantOfStrangers,
}


class Mutant(CowProvider):
    """Offers one of the above under its name."""

    broken: ClassVar[type[CowAllocator]]

    def create(self, need: AllocatorNeed, settings: Any, plugins: Any) -> CowAllocator:
        return self.broken(need)


@hookimpl
def paged_allocator() -> list[CowProvider]:
    return [
        type(cls.__name__, (Mutant,), {"name": name, "priority": -1, "broken": cls})() for name, cls in MUTANTS.items()
    ]
