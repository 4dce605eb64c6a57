"""CowPool: which block comes next, and the prefix cache over the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_alloc_cow.free_list import FreeList
from paged_core.paging.hits import Siblings
from paged_core.paging.pool import BlockPool

if TYPE_CHECKING:
    from paged_alloc_cow.prefix import BlockKey


class CowPool(BlockPool):
    """Hands out blocks and takes them back.

    keys       the key each block is published under, or None
    cached     key -> the blocks that hold it. Several sequences may have computed the same content; a free block is
               the only holder of its key, since a free copy beside another one would be worth nothing
    following  digest -> the tokens of all keys in `cached` whose parent it is

    Freed blocks without a key are reused first and last in, first out (their memory is warm); those with a key are
    reused last, oldest first. With the prefix cache off no block has a key and all is last in, first out.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.keys: list[BlockKey | None] = [None] * num_blocks
        self.cached: dict[BlockKey, list[int]] = {}
        self.following: dict[bytes, Siblings] = {}
        self.free_list = FreeList(num_blocks)

    def pop(self) -> int:
        """The next free block; the oldest cached one is evicted only when all free blocks are cached."""
        block = self.free_list.pop_front()
        if self.keys[block] is not None:
            self.unpublish(block)
            self.num_cached_free -= 1
            self.num_evictions += 1
        return block

    def revive(self, block: int) -> None:
        """A cached free block leaves the free list."""
        self.free_list.remove(block)

    def retire(self, block: int) -> None:
        """The last holder of its key stays a possible hit and is reused last; every other block is reused next."""
        key = self.keys[block]
        if key is not None and len(self.cached[key]) == 1:
            self.free_list.push_back(block)
            self.num_cached_free += 1
            return
        if key is not None:
            self.unpublish(block)
        self.free_list.push_front(block)

    def publish(self, block: int, key: BlockKey) -> None:
        """Make a full, computed block a possible hit."""
        if self.keys[block] is not None:
            return
        holders = self.cached.get(key)
        if holders is None:
            holders = self.cached[key] = []
            self.following.setdefault(key.parent, Siblings()).add(key.tokens)
        elif self.refs[holders[0]] == 0:
            self._demote(holders.pop())
        holders.append(block)
        self.keys[block] = key
        self.frozen[block] = True

    def unpublish(self, block: int) -> None:
        """The block's content is dropped: nobody may hit it any more."""
        key = self.keys[block]
        assert key is not None
        holders = self.cached[key]
        holders.remove(block)
        if not holders:
            del self.cached[key]
            siblings = self.following[key.parent]
            siblings.remove(key.tokens)
            if not siblings.ordered:
                del self.following[key.parent]
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

    def _demote(self, block: int) -> None:
        """The free holder of a key makes room for another block with the same content: it is reused next."""
        self.keys[block] = None
        self.frozen[block] = False
        self.num_cached_free -= 1
        self.free_list.remove(block)
        self.free_list.push_front(block)
