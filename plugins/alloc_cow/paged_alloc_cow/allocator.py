"""CowAllocator: paged tables whose published blocks are found again by a chained hash of their content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_cow.pool import CowPool
from paged_alloc_cow.prefix import BlockKey, PrefixKeys, digest_of
from paged_core.paging.allocator import PagedAllocator
from paged_core.paging.laws import demand

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed
    from paged_core.api.request import Sequence


class CowAllocator(PagedAllocator):
    """The allocator. `keys` computes each sequence's chain of block keys; None with the prefix cache off."""

    pool: CowPool

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need, CowPool(need.num_blocks))
        self.keys = PrefixKeys(need.block_size, need.hash_seed) if need.prefix_cache else None

    def find_blocks(self, seq: Sequence, limit: int) -> list[int]:
        """Published blocks that hold the beginning of `seq`, found by their keys."""
        if not self.pool.cached:
            return []
        assert self.keys is not None
        return self.pool.hits(self.keys.chain(seq, limit), limit)

    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        """Among the blocks whose key's parent is the key of the last of `blocks`."""
        assert self.keys is not None
        if not self.pool.following:
            return -1, 0
        num, request = len(blocks), seq.request
        parent = (
            self.keys.chain(seq, num)[num - 1].digest if num else self.keys.root(request.adapter, request.cache_salt)
        )
        siblings = self.pool.following.get(parent)
        closest, common = siblings.closest(tokens) if siblings else (b"", 0)
        if not common:
            return -1, 0
        return self.pool.cached[BlockKey(digest_of(parent, closest), parent, closest)][0], common

    def enter(self, seq: Sequence, begin: int, end: int) -> None:
        """Publish blocks begin .. end - 1 under their keys."""
        assert self.keys is not None
        chain = self.keys.chain(seq, end)
        for i, block in enumerate(self.tables[seq.row, begin:end].tolist(), begin):
            self.pool.publish(block, chain[i])

    def inherit(self, parent: Sequence, child: Sequence, num_full: int) -> None:
        """The child's chain begins like the parent's."""
        if self.keys is not None:
            self.keys.inherit(parent, child, num_full)

    def truncate(self, seq: Sequence, num_full: int) -> None:
        """Keys of blocks whose tokens may change are forgotten."""
        if self.keys is not None:
            self.keys.truncate(seq, num_full)

    # -- laws -----------------------------------------------------------------------------------------------------

    def check_free(self) -> list[int]:
        """Law 2 over the free list: linked both ways, cached blocks last."""
        pool = self.pool
        demand(pool.free_list.linked_both_ways(), "law 2: backward links of the free list do not mirror forward ones")
        listed = list(pool.free_list)
        cached = [pool.keys[block] is not None for block in listed]
        demand(
            sum(cached) == pool.num_cached_free,
            f"law 2: {sum(cached)} cached free blocks, counted {pool.num_cached_free}",
        )
        demand(cached == sorted(cached), "law 2: a cached block is reused before an uncached one")
        return listed

    def check_path(self, row: int, seq: Sequence) -> None:
        """Published blocks hold what their key says: recomputed from the tokens of everyone who uses them."""
        if self.keys is None:
            return
        parent = self.keys.root(seq.request.adapter, seq.request.cache_salt)
        size, computed = self.block_size, seq.num_computed
        for i, block in enumerate(self.tables[row, : -(-computed // size)].tolist()):
            tokens = seq.token_ids[i * size : min(computed, (i + 1) * size)].tobytes()
            key = self.pool.keys[block]
            demand(
                key is None or (key.parent == parent and key.tokens.startswith(tokens)),
                f"law 14: block {block} is published for other content than block {i} of row {row} has",
            )
            parent = digest_of(parent, tokens)

    def check_index(self) -> None:
        """Keys, holders and the marks of published blocks agree; a free block is the only holder of its key."""
        pool = self.pool
        holders = {key: sorted(blocks) for key, blocks in pool.cached.items()}
        published: dict[BlockKey, list[int]] = {}
        for block, key in enumerate(pool.keys):
            if key is not None:
                published.setdefault(key, []).append(block)
        demand(published == holders, "law 14: the prefix cache and the keys of the blocks disagree")
        following: dict[bytes, list[bytes]] = {}
        for key in holders:
            following.setdefault(key.parent, []).append(key.tokens)
        listed = {parent: siblings.ordered for parent, siblings in pool.following.items()}
        demand(
            listed == {parent: sorted(tokens) for parent, tokens in following.items()},
            "law 14: the prefix cache and its order by parents disagree",
        )
        frozen = np.flatnonzero(pool.frozen).tolist()
        demand(
            sorted(block for blocks in holders.values() for block in blocks) == frozen,
            "law 4: the blocks marked as published are not those that have a key",
        )
        for key, blocks in holders.items():
            demand(
                digest_of(key.parent, key.tokens) == key.digest, f"law 14: the key of blocks {blocks} is not their hash"
            )
            alone = len(blocks) == 1 or all(pool.refs[block] > 0 for block in blocks)
            demand(alone, f"law 2: of blocks {blocks} with equal content one is free and still cached")
