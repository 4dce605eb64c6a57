"""BlockPool: reference counts of the device blocks, and what must be known of them at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

MOST_COUNTED = 16
"""Reference counts from here on share the last place of the histogram."""


class BlockPool(ABC):
    """Hands out blocks and takes them back. Subclasses say which block comes next and what becomes of a free one.

    refs             int32 [num_blocks]; 0 = free
    frozen           bool [num_blocks]; the block is published and must not be written
    histogram        [k]: blocks with k references, the last place those with at least `MOST_COUNTED`
    num_saved        references beyond the first of each block: blocks that sharing saves
    num_cached_free  free blocks whose content can still be hit
    num_evictions    cached blocks that were overwritten
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs: NDArray[np.int32] = np.zeros(num_blocks, dtype=np.int32)
        self.frozen: NDArray[np.bool_] = np.zeros(num_blocks, dtype=np.bool_)
        self.histogram = [num_blocks, *[0] * MOST_COUNTED]
        self.num_saved = 0
        self.num_cached_free = 0
        self.num_evictions = 0

    @property
    def num_free(self) -> int:
        """Blocks nobody references, cached ones included."""
        return self.histogram[0]

    @property
    def num_shared(self) -> int:
        """Blocks with more than one reference."""
        return self.num_blocks - self.histogram[0] - self.histogram[1]

    def allocate(self) -> int:
        """A block with one reference that is not published; evicts a cached one if need be. There is a free one."""
        block = self.pop()
        self.refs[block] = 1
        self.histogram[0] -= 1
        self.histogram[1] += 1
        return block

    def acquire(self, block: int) -> None:
        """One more reference; a cached free block is in use again."""
        refs = int(self.refs[block])
        if refs:
            self.num_saved += 1
        else:
            self.revive(block)
            self.num_cached_free -= 1  # a free block is only ever acquired by its content
        self._count(block, refs, refs + 1)

    def release(self, block: int) -> None:
        """One reference less; at zero the block is free."""
        refs = int(self.refs[block])
        if refs <= 0:
            raise PluginContractError(f"law 1: block {block} is released though nobody references it")
        self._count(block, refs, refs - 1)
        if refs > 1:
            self.num_saved -= 1
        else:
            self.retire(block)

    def release_all(self, blocks: Iterable[int]) -> None:
        """Release in the given order: pass tails first, so that the beginnings of prompts stay cached longest."""
        for block in blocks:
            self.release(block)

    @abstractmethod
    def pop(self) -> int:
        """Take the free block to use next; it is published no more."""

    @abstractmethod
    def revive(self, block: int) -> None:
        """A cached free block is about to be referenced again."""

    @abstractmethod
    def retire(self, block: int) -> None:
        """`block` has just lost its last reference; if its content is cached, it may stay a possible hit."""

    def _count(self, block: int, before: int, after: int) -> None:
        self.refs[block] = after
        self.histogram[min(before, MOST_COUNTED)] -= 1
        self.histogram[min(after, MOST_COUNTED)] += 1
