"""The allocator's laws as code: what `check()` asserts. Numbers are those of `paged_core.api.allocator`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_radix.tree import origin_of, token_blocks
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_alloc_radix.allocator import RadixAllocator
    from paged_core.api.request import Sequence


def check_laws(allocator: RadixAllocator) -> None:
    """Raise PluginContractError naming the first law that does not hold."""
    _check_references(allocator)
    _check_free_blocks(allocator)
    for row, seq in enumerate(allocator.owners):
        if seq is not None:
            _check_table(allocator, row, seq)
    _check_tree(allocator)


def _demand(holds: bool, law: str) -> None:
    if not holds:
        raise PluginContractError(law)


def _check_references(allocator: RadixAllocator) -> None:
    pool, host = allocator.pool, allocator.host
    counted: Counter[int] = Counter()
    for row, seq in enumerate(allocator.owners):
        length = int(allocator.lengths[row])
        _demand(seq is not None or length == 0, f"law 1: row {row} holds {length} blocks but belongs to nobody")
        counted.update(allocator.tables[row, :length].tolist())
    for block, refs in enumerate(pool.refs.tolist()):
        _demand(
            refs == counted[block], f"law 1: block {block} has ref {refs}, but tables hold it {counted[block]} times"
        )
    shared = int(np.count_nonzero(pool.refs > 1))
    _demand(shared == pool.num_shared, f"law 1: {shared} blocks are shared, the running count says {pool.num_shared}")
    counted = Counter(block for table in host.tables.values() for block in table)
    for block, refs in enumerate(host.refs):
        _demand(
            refs == counted[block], f"law 1: host block {block} has ref {refs}, tables hold it {counted[block]} times"
        )


def _check_free_blocks(allocator: RadixAllocator) -> None:
    pool, host = allocator.pool, allocator.host
    cached = [block for block in np.flatnonzero(pool.frozen).tolist() if pool.refs[block] == 0]
    _demand(
        len(cached) == pool.num_cached_free,
        f"law 2: {len(cached)} cached blocks are free, the running count says {pool.num_cached_free}",
    )
    listed = sorted(pool.plain + cached)
    unreferenced = np.flatnonzero(pool.refs == 0).tolist()
    _demand(listed == unreferenced, f"law 2: the free blocks {listed} are not those with ref 0, {unreferenced}")
    idle = all(seq is None for seq in allocator.owners)
    _demand(
        not idle or len(listed) == pool.num_blocks, f"law 8: nobody is left, yet only {len(listed)} blocks are free"
    )
    spare = [block for block, refs in enumerate(host.refs) if refs == 0]
    _demand(
        sorted(host.free) == spare, f"law 2: host free list {sorted(host.free)} is not the blocks with ref 0 {spare}"
    )


def _check_table(allocator: RadixAllocator, row: int, seq: Sequence) -> None:
    name = f"branch {seq.index} of {seq.request.id} (row {row})"
    length, end, size = int(allocator.lengths[row]), int(allocator.ends[row]), allocator.block_size
    _demand(seq.row == row, f"law 3: row {row} is owned by {name}, whose row is {seq.row}")
    hits = int(allocator.hit_tokens[row])
    _demand(hits < seq.num_tokens, f"law 13: {hits} of the {seq.num_tokens} tokens of {name} are hits")
    if row in allocator.host.tables:
        _demand(length == 0, f"law 3: {name} is swapped out but holds {length} device blocks")
        length = len(allocator.host.tables[row])
    _demand(length == -(-end // size), f"laws 3 and 5: {name} holds {length} blocks of {size} for {end} positions")
    _demand(seq.num_computed <= end, f"law 3: {name} computed {seq.num_computed} positions, its table covers {end}")
    if row in allocator.host.tables:
        return
    for block in allocator.tables[row, seq.num_computed // size : length].tolist():
        if end > seq.num_computed:
            refs = int(allocator.pool.refs[block])
            _demand(refs == 1, f"law 4: {name} writes block {block}, which has ref {refs}")
            _demand(not allocator.pool.frozen[block], f"law 4: {name} writes block {block}, which is published")
    _check_path(allocator, row, seq)


def _check_path(allocator: RadixAllocator, row: int, seq: Sequence) -> None:
    """Published blocks stand in the tree where the tokens of everyone who uses them say."""
    tree, num = allocator.pool.tree, seq.num_computed // allocator.block_size
    blocks = allocator.tables[row, :num].tolist()
    for i, tokens in enumerate(token_blocks(seq, 0, num, allocator.block_size)):
        node = tree.node_of[blocks[i]]
        if node is None:
            continue
        holds = tree.depth[blocks[i]] == i and node.tokens[i - node.start] == tokens
        while node.parent is not None:
            node = node.parent
        _demand(
            holds and node.origin == origin_of(seq),
            f"law 14: block {blocks[i]} is published for other content than block {i} of row {row} has",
        )


def _check_tree(allocator: RadixAllocator) -> None:
    pool = allocator.pool
    tree, seen = pool.tree, []
    for origin, node in tree.nodes():
        parent = node.parent
        _demand(parent is not None and bool(node.tokens), f"law 14: a node of {origin} is empty or hangs nowhere")
        assert parent is not None
        _demand(
            parent.children.get(node.tokens[0]) is node and node.start == parent.start + len(parent.tokens),
            f"law 14: a node of {origin} at depth {node.start} does not stand behind its parent",
        )
        locked = not parent.holders or bool(pool.refs[parent.holders[-1]].any())
        for depth, holders in enumerate(node.holders, node.start):
            seen += holders
            _demand(
                all(tree.node_of[block] is node and tree.depth[block] == depth for block in holders),
                f"law 14: the tree holds blocks {holders} at depth {depth} and looks for them elsewhere",
            )
            refs = pool.refs[holders]
            _demand(bool(refs.all()) or len(holders) == 1, f"law 2: of blocks {holders} with equal content one is free")
            _demand(locked or not refs.any(), f"law 2: blocks {holders} are locked, what comes before them is not")
            locked = bool(refs.any())
    frozen = np.flatnonzero(pool.frozen).tolist()
    _demand(sorted(seen) == frozen, f"law 4: the tree holds {sorted(seen)}, marked as published are {frozen}")
