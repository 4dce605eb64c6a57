"""BlockPool: the device blocks, their reference counts and the prefix cache over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_cow.free_list import FreeList
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from paged_alloc_cow.prefix import BlockKey


class BlockPool:
    """Hands out blocks and takes them back.

    refs       int32 [num_blocks]; 0 = free
    frozen     bool [num_blocks]; the block is published and must not be written
    keys       the key each block is published under, or None
    cached     key -> the blocks that hold it. Several sequences may have computed the same content; a free block is
               the only holder of its key, since a free copy beside another one would be worth nothing

    Freed blocks without a key are reused first and last in, first out (their memory is warm); those with a key are
    reused last, oldest first. With the prefix cache off no block has a key and all is last in, first out.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs: NDArray[np.int32] = np.zeros(num_blocks, dtype=np.int32)
        self.frozen: NDArray[np.bool_] = np.zeros(num_blocks, dtype=np.bool_)
        self.keys: list[BlockKey | None] = [None] * num_blocks
        self.cached: dict[BlockKey, list[int]] = {}
        self.free_list = FreeList(num_blocks)
        self.num_shared = 0
        self.num_cached_free = 0
        self.num_evictions = 0

    @property
    def num_free(self) -> int:
        """Blocks nobody references, cached ones included."""
        return self.free_list.num_free

    def allocate(self) -> int:
        """A block with one reference and no key; evicts the oldest cached one if need be. There must be a free one."""
        block = self.free_list.pop_front()
        if self.keys[block] is not None:
            self.unpublish(block)
            self.num_cached_free -= 1
            self.num_evictions += 1
        self.refs[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """One more reference; a cached free block leaves the free list."""
        refs = int(self.refs[block])
        if refs == 0:
            self.free_list.remove(block)
            self.num_cached_free -= 1  # a free block is only ever acquired through its key
        elif refs == 1:
            self.num_shared += 1
        self.refs[block] = refs + 1

    def release(self, block: int) -> None:
        """One reference less; at zero the block is free and, as the last holder of its key, stays a possible hit."""
        refs = int(self.refs[block])
        if refs <= 0:
            raise PluginContractError(f"law 1: block {block} is released though nobody references it")
        self.refs[block] = refs - 1
        if refs == 2:
            self.num_shared -= 1
        elif refs == 1:
            self._retire(block)

    def release_all(self, blocks: Iterable[int]) -> None:
        """Release in the given order: pass tails first, so that the beginnings of prompts stay cached longest."""
        for block in blocks:
            self.release(block)

    def publish(self, block: int, key: BlockKey) -> None:
        """Make a full, computed block a possible hit."""
        if self.keys[block] is not None:
            return
        holders = self.cached.setdefault(key, [])
        if holders and self.refs[holders[0]] == 0:
            self._demote(holders[0])
            self.cached[key] = holders
        holders.append(block)
        self.keys[block] = key
        self.frozen[block] = True

    def unpublish(self, block: int) -> None:
        """The block's content is about to change or to be dropped: nobody may hit it any more."""
        key = self.keys[block]
        assert key is not None
        holders = self.cached[key]
        holders.remove(block)
        if not holders:
            del self.cached[key]
        self.keys[block] = None
        self.frozen[block] = False

    def hits(self, chain: list[BlockKey], limit: int) -> list[int]:
        """Blocks that hold the first keys of `chain`, at most `limit`; stops at the first miss."""
        found = []
        for key in chain[:limit]:
            holders = self.cached.get(key)
            if holders is None:
                break
            found.append(holders[0])
        return found

    def _retire(self, block: int) -> None:
        key = self.keys[block]
        if key is not None and len(self.cached[key]) == 1:
            self.free_list.push_back(block)
            self.num_cached_free += 1
            return
        if key is not None:
            self.unpublish(block)
        self.free_list.push_front(block)

    def _demote(self, block: int) -> None:
        """A free cached block has become redundant: it is reused next."""
        self.unpublish(block)
        self.num_cached_free -= 1
        self.free_list.remove(block)
        self.free_list.push_front(block)
