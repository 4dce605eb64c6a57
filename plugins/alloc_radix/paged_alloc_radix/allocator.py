"""RadixAllocator: paged tables whose published blocks are found again in a radix tree over their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_radix.pool import RadixPool
from paged_alloc_radix.tree import origin_of, token_blocks
from paged_core.paging.allocator import PagedAllocator
from paged_core.paging.laws import demand

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed
    from paged_core.api.request import Sequence


class RadixAllocator(PagedAllocator):
    """The allocator. The tree compares exact tokens; there is no hash."""

    pool: RadixPool

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need, RadixPool(need.num_blocks))

    def find_hits(self, seq: Sequence) -> list[int]:
        """Published blocks that hold the beginning of `seq`, never its last token (law 13)."""
        if not self.caches or seq.cold or not self.pool.tree.roots:
            return []
        limit = (seq.num_tokens - 1) // self.block_size
        return self.pool.tree.match(origin_of(seq), token_blocks(seq, 0, limit, self.block_size))

    def took_hits(self, hits: list[int]) -> None:
        """The path of a live sequence ends at a node of its own, so that what lies behind it can be evicted."""
        if hits:
            self.pool.tree.cut_after(hits[-1])

    def enter(self, seq: Sequence, begin: int, end: int) -> None:
        """Publish blocks begin .. end - 1, each behind the one before it."""
        origin, before = origin_of(seq), int(self.tables[seq.row, begin - 1]) if begin else None
        blocks = self.tables[seq.row, begin:end].tolist()
        for block, tokens in zip(blocks, token_blocks(seq, begin, end, self.block_size), strict=True):
            self.pool.publish(block, before, origin, tokens)
            before = block

    # -- laws -----------------------------------------------------------------------------------------------------

    def check_free(self) -> list[int]:
        """Law 2: free blocks are plain or cached, and the running count of the latter is right."""
        pool = self.pool
        cached = [block for block in np.flatnonzero(pool.frozen).tolist() if pool.refs[block] == 0]
        demand(
            len(cached) == pool.num_cached_free,
            f"law 2: {len(cached)} cached blocks are free, the running count says {pool.num_cached_free}",
        )
        return pool.plain + cached

    def check_path(self, row: int, seq: Sequence) -> None:
        """Published blocks stand in the tree where the tokens of everyone who uses them say."""
        tree, num = self.pool.tree, seq.num_computed // self.block_size
        blocks = self.tables[row, :num].tolist()
        for i, tokens in enumerate(token_blocks(seq, 0, num, self.block_size)):
            node = tree.node_of[blocks[i]]
            if node is None:
                continue
            holds = tree.depth[blocks[i]] == i and node.tokens[i - node.start] == tokens
            while node.parent is not None:
                node = node.parent
            demand(
                holds and node.origin == origin_of(seq),
                f"law 14: block {blocks[i]} is published for other content than block {i} of row {row} has",
            )

    def check_index(self) -> None:
        """Every node stands behind its parent, a path in use has no gap, and the marks of published blocks agree."""
        pool = self.pool
        tree, seen = pool.tree, []
        for origin, node in tree.nodes():
            parent = node.parent
            demand(parent is not None and bool(node.tokens), f"law 14: a node of {origin} is empty or hangs nowhere")
            assert parent is not None
            demand(
                parent.children.get(node.tokens[0]) is node and node.start == parent.start + len(parent.tokens),
                f"law 14: a node of {origin} at depth {node.start} does not stand behind its parent",
            )
            locked = not parent.holders or bool(pool.refs[parent.holders[-1]].any())
            for depth, holders in enumerate(node.holders, node.start):
                seen += holders
                demand(
                    all(tree.node_of[block] is node and tree.depth[block] == depth for block in holders),
                    f"law 14: the tree holds blocks {holders} at depth {depth} and looks for them elsewhere",
                )
                refs = pool.refs[holders]
                demand(
                    bool(refs.all()) or len(holders) == 1, f"law 2: of blocks {holders} with equal content one is free"
                )
                demand(locked or not refs.any(), f"law 2: blocks {holders} are locked, what comes before them is not")
                locked = bool(refs.any())
        frozen = np.flatnonzero(pool.frozen).tolist()
        demand(sorted(seen) == frozen, f"law 4: the tree holds {sorted(seen)}, marked as published are {frozen}")
