"""RadixPool: which block comes next; what is free is either plain or cached in the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_alloc_radix.tree import Origin, RadixTree
from paged_core.paging.pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Iterable


class RadixPool(BlockPool):
    """Hands out blocks and takes them back.

    plain   free blocks without cached content, the next one to reuse last; with the cached free blocks of the tree
            they are the pool that running requests share
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.tree = RadixTree(self.refs)
        self.plain = list(range(num_blocks - 1, -1, -1))

    def pop(self) -> int:
        """A plain block; when there is none, the end of the least recently used path."""
        if self.plain:
            return self.plain.pop()
        block = self.tree.evict()
        self.frozen[block] = False
        self.num_cached_free -= 1
        self.num_evictions += 1
        return block

    def revive(self, block: int) -> None:
        """The reference to come locks it: nothing to do."""

    def retire(self, block: int) -> None:
        """The only holder of its content stays a possible hit; every other block is plain."""
        if not self.frozen[block]:
            self.plain.append(block)
        elif self.tree.is_spare(block):
            self.tree.remove(block)
            self.frozen[block] = False
            self.plain.append(block)
        else:
            self.num_cached_free += 1
            self.tree.unlock(block)

    def release_all(self, blocks: Iterable[int]) -> None:
        """Release a table, tail first. It counts as one moment for the tree's clock."""
        self.tree.clock += 1
        super().release_all(blocks)

    def publish(self, block: int, before: int | None, origin: Origin, tokens: bytes) -> None:
        """Enter a full, computed block into the tree behind `before`."""
        if self.frozen[block]:
            return
        redundant = self.tree.insert(block, before, origin, tokens)
        self.frozen[block] = True
        if redundant is not None:
            self.frozen[redundant] = False
            self.num_cached_free -= 1
            self.plain.append(redundant)
