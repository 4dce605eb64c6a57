"""More broken allocators: scratches that misjudge, and steps that cost too much. See alloc_mutants.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from paged_alloc_cow import CowProvider
from paged_alloc_cow.allocator import CowAllocator

from paged_core.api.hookspecs import hookimpl
from paged_core.paging.scratch import PagedScratch

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed, BlockCopy
    from paged_core.api.request import Group, Sequence


class Smug(CowAllocator):
    """alloc_cow without self-control."""

    def check(self) -> None:
        pass


class OverPromisingScratch(PagedScratch):
    """Asks one block less than it needs."""

    def need(self, group: Group, num_tokens: int) -> int:
        return max(0, super().need(group, num_tokens) - 1)


class OverPromises(Smug):
    """Has a scratch that asks one block less."""

    def scratch(self, running: list[Group], decode_rows: Any) -> PagedScratch:
        return OverPromisingScratch(self, decode_rows)


class FreeTwiceScratch(PagedScratch):
    """Counts every block of a victim as freed, shared or not."""

    def give_back(self, group: Group) -> int:
        super().give_back(group)
        held = sum(int(self._allocator.lengths[seq.row]) for seq in group.live)
        self._free = min(self.total, self._free + held)
        return held


class GivesBackShared(Smug):
    """Has a scratch that counts a block once per table."""

    def scratch(self, running: list[Group], decode_rows: Any) -> PagedScratch:
        return FreeTwiceScratch(self, decode_rows)


class ForgetfulDecodes(PagedScratch):
    """Counts fresh blocks of decodes and forgets the copies."""

    def _count_decodes(self) -> int:
        columns = self._allocator.decode_columns(self._decode_rows)
        return int(columns.crosses.sum())


class UncountedCopies(Smug):
    """Has a scratch that forgets copies."""

    def scratch(self, running: list[Group], decode_rows: Any) -> PagedScratch:
        return ForgetfulDecodes(self, decode_rows)


class Hoards(Smug):
    """Keeps a copy of the tables of every step."""

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need)
        self.history: list[Any] = []

    def grow_decodes(self, seqs: list[Sequence], rows: Any) -> list[BlockCopy] | None:
        self.history.append([[[block] for block in self.tables[row].tolist()] for row in rows])
        return super().grow_decodes(seqs, rows)


class CopiesTables(Smug):
    """Turns all tables into Python objects and back in every step."""

    def grow_decodes(self, seqs: list[Sequence], rows: Any) -> list[BlockCopy] | None:
        copies = super().grow_decodes(seqs, rows)
        self.tables[:] = [[float(block) for block in row] for row in self.tables for _ in range(4)][::4]
        return copies


class ProbesAgain(Smug):
    """Asks its provider in every step whether it still fits."""

    def scratch(self, running: list[Group], decode_rows: Any) -> PagedScratch:
        Mutant.missing_capabilities(Mutant(), frozenset())
        return super().scratch(running, decode_rows)


MUTANTS: dict[str, type[CowAllocator]] = {
    "alloc_over_promises": OverPromises,
    "alloc_gives_back_shared": GivesBackShared,
    "alloc_uncounted_copies": UncountedCopies,
    "alloc_hoards": Hoards,
    "alloc_copies_tables": CopiesTables,
    "alloc_probes_again": ProbesAgain,
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
