"""RadixAllocator: paged tables whose published blocks are found again in a radix tree over their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_radix.pool import RadixPool
from paged_alloc_radix.tree import origin_of, token_blocks
from paged_core.paging.allocator import PagedAllocator
from paged_core.paging.hits import TOKEN_BYTES
from paged_core.paging.laws import demand

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed
    from paged_core.api.request import Sequence


class RadixAllocator(PagedAllocator):
    """The allocator. The tree compares exact tokens; there is no hash."""

    pool: RadixPool

    def __init__(self, need: AllocatorNeed) -> None:
        super().__init__(need, RadixPool(need.num_blocks))

    def find_blocks(self, seq: Sequence, limit: int) -> list[int]:
        """Published blocks that hold the beginning of `seq`: the path of its tokens."""
        return self.pool.tree.match(origin_of(seq), token_blocks(seq, 0, limit, self.block_size))

    def find_beginning(self, seq: Sequence, blocks: list[int], tokens: bytes) -> tuple[int, int]:
        """Where the path ends: what goes on in its run, or the children of its last node."""
        return self.pool.tree.closest(origin_of(seq), blocks[-1] if blocks else None, tokens)

    def took_hits(self, blocks: list[int], num_whole: int) -> None:
        """What a live sequence holds ends at a node of its own, so that what lies behind it ages apart."""
        if num_whole:
            self.pool.tree.cut_after(blocks[num_whole - 1])
        if len(blocks) > num_whole:
            self.pool.tree.cut_after(blocks[num_whole])

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
        tree, computed, stride = self.pool.tree, seq.num_computed, TOKEN_BYTES * self.block_size
        content = seq.token_ids[:computed].tobytes()
        blocks = self.tables[row, : -(-computed // self.block_size)].tolist()
        for i, block in enumerate(blocks):
            node = tree.node_of[block]
            if node is None:
                continue
            tokens = content[i * stride : (i + 1) * stride]
            holds = tree.depth[block] == i and node.tokens[i - node.start].startswith(tokens)
            while node.parent is not None:
                node = node.parent
            demand(
                holds and node.origin == origin_of(seq),
                f"law 14: block {block} is published for other content than block {i} of row {row} has",
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
            demand(parent.siblings.ordered == sorted(parent.children), f"law 14: children of {origin} are out of order")
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
