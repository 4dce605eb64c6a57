"""BlockPool: the device blocks and their reference counts; what is free is either plain or cached in the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_radix.tree import Origin, RadixTree
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class BlockPool:
    """Hands out blocks and takes them back.

    refs             int32 [num_blocks]; 0 = free
    frozen           bool [num_blocks]; the block is in the tree and must not be written
    plain            free blocks without cached content, the next one to reuse last
    num_cached_free  free blocks in the tree; together with `plain` they are the pool that running requests share
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs: NDArray[np.int32] = np.zeros(num_blocks, dtype=np.int32)
        self.frozen: NDArray[np.bool_] = np.zeros(num_blocks, dtype=np.bool_)
        self.tree = RadixTree(self.refs)
        self.plain = list(range(num_blocks - 1, -1, -1))
        self.num_shared = 0
        self.num_cached_free = 0
        self.num_evictions = 0

    @property
    def num_free(self) -> int:
        """Blocks nobody references, cached ones included."""
        return len(self.plain) + self.num_cached_free

    def allocate(self) -> int:
        """A block with one reference and no content; evicts a cached one if need be. There must be a free one."""
        if self.plain:
            block = self.plain.pop()
        else:
            block = self.tree.evict()
            self.frozen[block] = False
            self.num_cached_free -= 1
            self.num_evictions += 1
        self.refs[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """One more reference; a cached free block is locked by it."""
        refs = int(self.refs[block])
        if refs == 0:
            self.num_cached_free -= 1  # a free block is only ever acquired through the tree
        elif refs == 1:
            self.num_shared += 1
        self.refs[block] = refs + 1

    def release(self, block: int) -> None:
        """One reference less; at zero it is free and, as the only holder of its content, stays a possible hit."""
        refs = int(self.refs[block])
        if refs <= 0:
            raise PluginContractError(f"law 1: block {block} is released though nobody references it")
        self.refs[block] = refs - 1
        if refs == 2:
            self.num_shared -= 1
        elif refs == 1:
            self._retire(block)

    def release_all(self, blocks: Iterable[int]) -> None:
        """Release a table, tail first. It counts as one moment for the tree's clock."""
        self.tree.clock += 1
        for block in blocks:
            self.release(block)

    def publish(self, block: int, before: int | None, origin: Origin, tokens: bytes) -> None:
        """Enter a full, computed block into the tree behind `before`."""
        if self.frozen[block]:
            return
        redundant = self.tree.insert(block, before, origin, tokens)
        self.frozen[block] = True
        if redundant is not None:
            self._forget(redundant)

    def unpublish(self, block: int) -> None:
        """A referenced block is about to be written: it leaves the tree, and so does what came behind it."""
        self.frozen[block] = False
        for other in self.tree.remove(block):
            if self.refs[other]:
                raise PluginContractError(f"law 4: block {other} is in use behind block {block}, which is rewritten")
            self._forget(other)

    def _retire(self, block: int) -> None:
        if not self.frozen[block]:
            self.plain.append(block)
        elif self.tree.is_spare(block):
            self.tree.remove(block)
            self.frozen[block] = False
            self.plain.append(block)
        else:
            self.num_cached_free += 1
            self.tree.unlock(block)

    def _forget(self, block: int) -> None:
        """A free cached block left the tree."""
        self.frozen[block] = False
        self.num_cached_free -= 1
        self.plain.append(block)
