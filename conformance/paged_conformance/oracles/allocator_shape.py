"""Shape and Origin: how large a pool is, and whose tokens it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.api.allocator import AllocatorNeed

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

SIZES = (4, 2, 8, 16, 32, 64, 128, 256, 1)  # block sizes in the order in which the suite likes them


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a world. `block_size` 0: the first of SIZES that the candidate accepts. Lengths are in blocks."""

    num_blocks: int = 16
    block_size: int = 0
    num_host_blocks: int = 0
    max_rows: int = 24
    max_blocks: int = 16
    prefix_cache: bool = True
    hash_seed: int | None = None

    def need(self, candidate: Candidate) -> AllocatorNeed:
        """The need that the engine would state; the prefix cache is only asked of those that declare it."""
        cache = self.prefix_cache and candidate.has("prefix_cache")

        def stated(size: int) -> AllocatorNeed:
            length = self.max_blocks * size
            return AllocatorNeed(
                self.num_blocks, self.num_host_blocks, size, self.max_rows, length, cache, self.hash_seed
            )

        if self.block_size:
            return stated(self.block_size)
        fitting = [size for size in SIZES if candidate.fit(stated(size)).ok]
        assert fitting, f"{candidate.name} accepts none of the block sizes {sorted(SIZES)}; 16 is mandatory"
        return stated(fitting[0])


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose tokens they are, and whether they may be hit."""

    salt: str | None = None
    adapter: str | None = None
    cold: bool = False


PLAIN = Origin()
