"""Broken allocators whose hits end inside blocks. See alloc_mutants.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from paged_alloc_cow import CowProvider
from paged_alloc_cow.allocator import CowAllocator

from paged_core.api.hookspecs import hookimpl
from paged_core.paging import hits as rules
from paged_core.paging.scratch import PagedScratch

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed, BlockCopy
    from paged_core.api.request import Group, Sequence
    from paged_core.paging.hits import Hits


class Smug(CowAllocator):
    """alloc_cow without self-control."""

    def check(self) -> None:
        pass


class WritesSource(Smug):
    """A published block is written by whoever holds it alone."""

    def _closed(self, block: int) -> bool:
        return bool(self.pool.refs[block] > 1)


class ClaimsTooMuch(Smug):
    """Takes the stale tail behind the shared part for a hit as well."""

    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        block, common = super().find_beginning(seq, blocks, tokens)
        return block, min(common + 1, len(tokens) // 4) if common else 0


class TakesAnySibling(Smug):
    """Takes the first continuation there is, whatever another one shares."""

    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        block, common = super().find_beginning(seq, blocks, tokens)
        if not common:
            return block, common
        key = self.pool.keys[block]
        assert key is not None
        first = self.pool.following[key.parent].ordered[0]
        holders = [holders for key_, holders in self.pool.cached.items() if key_[1:] == (key.parent, first)]
        return holders[0][0], rules.common_tokens(first, tokens)


class ForgetsWhose(Smug):
    """Beginnings are looked for without adapter and salt."""

    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        best = (-1, 0)
        for key, holders in self.pool.cached.items():
            common = rules.common_tokens(key.tokens, tokens)
            best = max(best, (holders[0], common), key=lambda pair: pair[1])
        return best


class LetsGoAtOnce(Smug):
    """The source of a copy is free before the copy ran."""

    def _make_writable(self, row: int, index: int) -> list[BlockCopy]:
        copies = super()._make_writable(row, index)
        self._unpin(row)
        return copies


class KeepsSource(Smug):
    """The source of a copy stays when its copier leaves."""

    def free(self, seq: Sequence) -> None:
        kept = self.sources.pop(seq.row, None)
        super().free(seq)
        if kept:
            self.sources[seq.row] = kept


class BorrowsEverything(Smug):
    """Copies beside their source even where the pool has no room for both."""

    def open(self, seq: Sequence) -> int:
        return _with_room(super().open, seq)

    def scratch(self, running: list[Group], decode_rows: Any) -> PagedScratch:
        return RecklessScratch(self, decode_rows)


class RecklessScratch(PagedScratch):
    """Plans as BorrowsEverything opens."""

    def _hits_of(self, seq: Sequence) -> Hits:
        return _with_room(super()._hits_of, seq)


def _with_room(call: Any, seq: Sequence) -> Any:
    affords, rules._affords_copy = rules._affords_copy, lambda allocator, seq: True
    try:
        return call(seq)
    finally:
        rules._affords_copy = affords


class FreeCopies(PagedScratch):
    """Charges no copy where a newcomer's hit ends inside a block."""

    def _growth_of(self, seq: Sequence, num_tokens: int, writers: dict[int, int]) -> int:
        growth = super()._growth_of(seq, num_tokens, writers)
        inside = seq in self._hits and self._hits[seq].num_tokens % self._size
        return growth - bool(inside)


class UnchargedCopies(Smug):
    """Has a scratch that forgets the copies of newcomers."""

    def scratch(self, running: list[Group], decode_rows: Any) -> PagedScratch:
        return FreeCopies(self, decode_rows)


class NeverBorrows(Smug):
    """Declares partial hits and has none."""

    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        return -1, 0


class BorrowsCold(Smug):
    """Cold sequences hit beginnings of blocks."""

    def open(self, seq: Sequence) -> int:
        cold, seq.cold = seq.cold, False
        hits = super().open(seq)
        seq.cold = cold
        return hits

    def find_blocks(self, seq: Sequence, limit: int) -> list[int]:
        return [] if seq.request.params.prompt_logprobs is not None else super().find_blocks(seq, limit)


MUTANTS: dict[str, type[CowAllocator]] = {
    "alloc_writes_source": WritesSource,
    "alloc_claims_too_much": ClaimsTooMuch,
    "alloc_takes_any_sibling": TakesAnySibling,
    "alloc_forgets_whose": ForgetsWhose,
    "alloc_lets_go_at_once": LetsGoAtOnce,
    "alloc_keeps_source": KeepsSource,
    "alloc_borrows_everything": BorrowsEverything,
    "alloc_uncharged_copies": UnchargedCopies,
    "alloc_never_borrows": NeverBorrows,
    "alloc_borrows_cold": BorrowsCold,
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
