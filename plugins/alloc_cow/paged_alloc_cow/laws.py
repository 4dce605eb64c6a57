"""The allocator's laws as code: what `check()` asserts. Numbers are those of `paged_core.api.allocator`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from paged_alloc_cow.prefix import digest_of
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_alloc_cow.allocator import CowAllocator
    from paged_alloc_cow.prefix import BlockKey
    from paged_core.api.request import Sequence


def check_laws(allocator: CowAllocator) -> None:
    """Raise PluginContractError naming the first law that does not hold."""
    _check_references(allocator)
    _check_free_list(allocator)
    for row, seq in enumerate(allocator.owners):
        if seq is not None:
            _check_table(allocator, row, seq)
    _check_cache(allocator)


def _demand(holds: bool, law: str) -> None:
    if not holds:
        raise PluginContractError(law)


def _check_references(allocator: CowAllocator) -> None:
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


def _check_free_list(allocator: CowAllocator) -> None:
    pool, host = allocator.pool, allocator.host
    _demand(pool.free_list.linked_both_ways(), "law 2: the free list's backward links do not mirror the forward ones")
    listed = list(pool.free_list)
    _demand(len(set(listed)) == len(listed), "law 2: a block is in the free list twice")
    unreferenced = np.flatnonzero(pool.refs == 0).tolist()
    _demand(
        sorted(listed) == unreferenced, f"law 2: free list {sorted(listed)} is not the blocks with ref 0 {unreferenced}"
    )
    _demand(
        len(listed) == pool.num_free, f"law 2: {len(listed)} blocks are free, the running count says {pool.num_free}"
    )
    cached = [pool.keys[block] is not None for block in listed]
    _demand(
        sum(cached) == pool.num_cached_free, f"law 2: {sum(cached)} cached free blocks, counted {pool.num_cached_free}"
    )
    _demand(cached == sorted(cached), "law 2: a cached block is reused before an uncached one")
    idle = all(seq is None for seq in allocator.owners)
    _demand(
        not idle or len(listed) == pool.num_blocks, f"law 8: nobody is left, yet only {len(listed)} blocks are free"
    )
    spare = [block for block, refs in enumerate(host.refs) if refs == 0]
    _demand(
        sorted(host.free) == spare, f"law 2: host free list {sorted(host.free)} is not the blocks with ref 0 {spare}"
    )


def _check_table(allocator: CowAllocator, row: int, seq: Sequence) -> None:
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
    _check_keys(allocator, row, seq)


def _check_keys(allocator: CowAllocator, row: int, seq: Sequence) -> None:
    """Published blocks hold what their key says: recomputed from the tokens of everyone who uses them."""
    if allocator.keys is None:
        return
    parent = allocator.keys.root(seq.request.adapter, seq.request.cache_salt)
    size = allocator.block_size
    for i, block in enumerate(allocator.tables[row, : seq.num_computed // size].tolist()):
        tokens = seq.token_ids[i * size : (i + 1) * size].tobytes()
        parent, key = digest_of(parent, tokens), allocator.pool.keys[block]
        _demand(
            key is None or key.digest == parent,
            f"law 14: block {block} is published for other content than block {i} of row {row} has",
        )


def _check_cache(allocator: CowAllocator) -> None:
    pool = allocator.pool
    holders = {key: sorted(blocks) for key, blocks in pool.cached.items()}
    published: dict[BlockKey, list[int]] = {}
    for block, key in enumerate(pool.keys):
        if key is not None:
            published.setdefault(key, []).append(block)
    _demand(published == holders, "law 14: the prefix cache and the keys of the blocks disagree")
    frozen = np.flatnonzero(pool.frozen).tolist()
    _demand(
        sorted(block for blocks in holders.values() for block in blocks) == frozen,
        "law 4: the blocks marked as published are not those that have a key",
    )
    for key, blocks in holders.items():
        _demand(
            digest_of(key.parent, key.tokens) == key.digest, f"law 14: the key of blocks {blocks} is not their hash"
        )
        alone = len(blocks) == 1 or all(pool.refs[block] > 0 for block in blocks)
        _demand(alone, f"law 2: of blocks {blocks} with equal content one is free and still cached")
