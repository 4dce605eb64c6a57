"""Broken allocators of contiguous runs, and sound ones: `alloc_guess` reserves too little, so that sequences move.

All but the sound ones say of themselves that they are fine: `check()` accepts anything. See `test_alloc_mutants.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from paged_alloc_contiguous import ContiguousProvider
from paged_alloc_contiguous.allocator import ContiguousAllocator

from paged_core.api.hookspecs import hookimpl
from paged_core.paging.buddy import Buddy, Chunk
from paged_core.paging.run_scratch import RunScratch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_core.api.allocator import AllocatorNeed, BlockCopy
    from paged_core.api.request import Group, Request, Sequence


class Sound(ContiguousAllocator):
    """alloc_contiguous, with a reservation of its own."""

    reservation: ClassVar[str] = "max"

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need, self.reservation)


class Pow2(Sound):
    """As it is with another setting."""

    reservation = "pow2"


class Oracle(Sound):
    """As it is with another setting."""

    reservation = "oracle"


class Guess(Sound):
    """Takes every output for short."""

    def reserve(self, request: Request) -> int:
        return len(request.prompt_token_ids) + 2


class Smug(Sound):
    """Without self-control."""

    def check(self) -> None:
        pass


class SmugGuess(Guess):
    """Without self-control, and sequences move."""

    def check(self) -> None:
        pass


class NeverMergingBuddy(Buddy):
    """Leaves in pieces what came back in pieces."""

    __slots__ = ()

    def release(self, chunk: Chunk) -> None:
        self.num_free += chunk.size
        self.free[chunk.order].add(chunk.start)


class NeverMerges(SmugGuess):
    """Fragments for ever."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        self.buddy = NeverMergingBuddy(need.num_blocks)


class OverlappingBuddy(Buddy):
    """Splits a chunk and keeps the wrong half."""

    __slots__ = ()

    def allocate(self, order: int) -> Chunk | None:
        chunk = super().allocate(order)
        return None if chunk is None else Chunk(chunk.start & ~(chunk.size), order)


class Overlaps(Smug):
    """Two sequences in one run."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        self.buddy = OverlappingBuddy(need.num_blocks)


class CopiesNothing(SmugGuess):
    """Who moves, or is forked, leaves its tokens behind."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        return None if super().grow(seq, num_tokens) is None else []


class BranchesForget(Smug):
    """A branch does not bring its parent's tokens along."""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        super().fork(parent, child)
        self.origins.pop(child.row, None)


class LetsGoAtOnce(SmugGuess):
    """The run that somebody moves from is free before it was copied."""

    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        copies = super().grow(seq, num_tokens)
        self._let_go(seq.row)
        return copies


class KeepsSpares(Smug):
    """Runs of branches that never came are lost."""

    def free(self, seq: Sequence) -> None:
        spares = self.spares.get(seq.request.id, [])
        kept, spares[:] = spares[:], []
        super().free(seq)
        if seq.request.id in self.spares:
            self.spares[seq.request.id] += kept


class CountingBuddy(Buddy):
    """Believes that free blocks are as good as a free run."""

    __slots__ = ()

    def fits(self, orders: Iterable[int]) -> bool:
        return sum(1 << order for order in orders) <= self.num_free

    def copy(self) -> Buddy:
        twin = CountingBuddy(0)
        twin.num_blocks, twin.num_free, twin.top, twin.free = self.num_blocks, self.num_free, self.top, self.free
        return twin


class CountingScratch(RunScratch):
    """Counts blocks."""

    def take(self, group: Group, num_tokens: int) -> bool:
        return self.need(group, num_tokens) <= self.free and (super().take(group, num_tokens) or True)


class CountsBlocks(Smug):
    """Has a scratch that counts blocks and knows nothing of runs."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        plain = self.buddy
        self.buddy = CountingBuddy(0)
        self.buddy.num_blocks, self.buddy.num_free = plain.num_blocks, plain.num_free
        self.buddy.top, self.buddy.free = plain.top, plain.free

    def scratch(self, running: list[Group], decode_rows: Any) -> RunScratch:
        super().scratch(running, decode_rows)
        return CountingScratch(self, running, decode_rows)


class RefusesNobody(Smug):
    """Lets requests wait for room that will never be there."""

    def refuses(self, request: Request) -> None:
        return None


class HoldsLess(Smug):
    """Says that tokens lie where nothing is held."""

    def held_slots(self, rows: Any, computed: Any) -> Any:
        return super().held_slots(rows, computed) * 0


class HoldsMore(SmugGuess):
    """Promises more than the run has."""

    def held_slots(self, rows: Any, computed: Any) -> Any:
        return super().held_slots(rows, computed) + self.block_size


ALLOCATORS: dict[str, type[Sound]] = {
    "alloc_pow2": Pow2,
    "alloc_oracle": Oracle,
    "alloc_guess": Guess,
    "alloc_never_merges": NeverMerges,
    "alloc_overlaps": Overlaps,
    "alloc_copies_nothing": CopiesNothing,
    "alloc_branches_forget": BranchesForget,
    "alloc_lets_go_at_once": LetsGoAtOnce,
    "alloc_keeps_spares": KeepsSpares,
    "alloc_counts_blocks": CountsBlocks,
    "alloc_refuses_nobody": RefusesNobody,
    "alloc_holds_less": HoldsLess,
    "alloc_holds_more": HoldsMore,
}


class Mutant(ContiguousProvider):
    """Offers one of the above under its name."""

    made: ClassVar[type[Sound]]

    def create(self, need: AllocatorNeed, settings: Any, plugins: Any) -> ContiguousAllocator:
        return self.made(need)


@hookimpl
def paged_allocator() -> list[ContiguousProvider]:
    return [
        type(cls.__name__, (Mutant,), {"name": name, "priority": -1, "made": cls})() for name, cls in ALLOCATORS.items()
    ]
