"""Buddy: runs of 2**k neighbouring blocks, split in halves and merged again (Knuth, TAOCP 1, 2.5; Knowlton 1965)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Chunk(NamedTuple):
    """Blocks start .. start + 2**order - 1; start is a multiple of the size."""

    start: int
    order: int

    @property
    def size(self) -> int:
        """Blocks of the chunk."""
        return 1 << self.order

    @property
    def blocks(self) -> range:
        """Its block ids."""
        return range(self.start, self.start + self.size)


def order_for(num_blocks: int) -> int:
    """The order of the smallest chunk with at least `num_blocks` (1 or more)."""
    return (num_blocks - 1).bit_length()


class Buddy:
    """The free chunks of a pool of any size. A pool that is no power of two is several, largest first.

    The smallest free chunk that is large enough is split, so whether some requests fit does not depend on the order in
    which they are made: they do exactly if, for every k, what is asked in chunks of order k and more is no more than
    what is free in such chunks. A plan made against a `copy` therefore holds in whatever order it is carried out.
    """

    __slots__ = ("free", "num_blocks", "num_free", "top")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.top = num_blocks.bit_length() - 1
        """Order of the largest chunk; -1 for an empty pool."""
        self.free: list[set[int]] = [set() for _ in range(self.top + 1)]
        """Starts of free chunks by order."""
        start = 0
        for order in range(self.top, -1, -1):
            if num_blocks >> order & 1:
                self.free[order].add(start)
                start += 1 << order

    def copy(self) -> Buddy:
        """Free chunks of its own: for plans."""
        twin = Buddy(0)
        twin.num_blocks, twin.num_free, twin.top = self.num_blocks, self.num_free, self.top
        twin.free = [set(starts) for starts in self.free]
        return twin

    def fits(self, orders: Iterable[int]) -> bool:
        """Whether chunks of all these orders can be taken, in whatever order they are."""
        room = [len(starts) << order for order, starts in enumerate(self.free)]
        for order in orders:
            if order > self.top:
                return False
            room[order] -= 1 << order
        spare = 0
        for size in reversed(room):
            spare += size
            if spare < 0:
                return False
        return True

    def allocate(self, order: int) -> Chunk | None:
        """A chunk of this order; None: no room. Of several that fit equally well the one at the lowest address."""
        found = next((k for k in range(order, self.top + 1) if self.free[k]), None)
        if found is None:
            return None
        start = min(self.free[found])
        self.free[found].remove(start)
        for half in range(found - 1, order - 1, -1):
            self.free[half].add(start + (1 << half))
        self.num_free -= 1 << order
        return Chunk(start, order)

    def allocate_all(self, orders: Sequence[int]) -> list[Chunk] | None:
        """A chunk for each of `orders`; None: they do not all fit, and nothing was taken."""
        made: list[Chunk] = []
        for order in orders:
            chunk = self.allocate(order)
            if chunk is None:
                self.release_all(made)
                return None
            made.append(chunk)
        return made

    def release(self, chunk: Chunk) -> None:
        """Give a chunk back; it merges with its buddy for as long as that is free."""
        start, order = chunk
        if start in self.free[order]:
            raise PluginContractError(f"law 2: blocks {chunk.blocks} are given back twice")
        self.num_free += chunk.size
        while order < self.top and start ^ (1 << order) in self.free[order]:
            self.free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self.free[order].add(start)

    def release_all(self, chunks: Iterable[Chunk]) -> None:
        """Give back several."""
        for chunk in chunks:
            self.release(chunk)

    def check(self, held: Iterable[Chunk]) -> None:
        """Assert that `held` and the free chunks are the pool, aligned and disjoint, and that no two buddies are free.

        Raises PluginContractError naming the law.
        """
        free = [Chunk(start, order) for order, starts in enumerate(self.free) for start in starts]
        chunks = [*held, *free]
        owned = sorted(block for chunk in chunks for block in chunk.blocks)
        if owned != list(range(self.num_blocks)):
            raise PluginContractError(f"laws 1 and 2: held and free chunks are not the pool once: {chunks}")
        if crooked := [chunk for chunk in chunks if chunk.start % chunk.size]:
            raise PluginContractError(f"buddy law: {crooked} do not start at a multiple of their size")
        if apart := [chunk for chunk in free if chunk.start ^ chunk.size in self.free[chunk.order]]:
            raise PluginContractError(f"buddy law: {apart} and their buddies are free and were not merged")
        if self.num_free != sum(chunk.size for chunk in free):
            raise PluginContractError(f"law 2: {self.num_free} blocks are counted as free, the chunks are {free}")
