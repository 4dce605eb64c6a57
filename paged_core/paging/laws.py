"""The allocator's laws as code: what `check()` asserts. Numbers are those of `paged_core.api.allocator`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import PluginContractError
from paged_core.paging.pool import MOST_COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Numbers

    from paged_core.api.request import Sequence
    from paged_core.paging.allocator import PagedAllocator


def check_laws(allocator: PagedAllocator) -> None:
    """Raise PluginContractError naming the first law that does not hold."""
    _check_references(allocator)
    _check_free(allocator)
    for row, seq in enumerate(allocator.owners):
        if seq is not None:
            _check_table(allocator, row, seq)
    allocator.check_index()


def demand(holds: bool, law: str) -> None:
    """Raise PluginContractError with `law` unless it holds."""
    if not holds:
        raise PluginContractError(law)


def _check_references(allocator: PagedAllocator) -> None:
    pool, host = allocator.pool, allocator.host
    counted: Counter[int] = Counter()
    for row, seq in enumerate(allocator.owners):
        length = int(allocator.lengths[row])
        demand(seq is not None or length == 0, f"law 1: row {row} holds {length} blocks but belongs to nobody")
        counted.update(allocator.tables[row, :length].tolist())
        counted.update(allocator.sources.get(row, ()))
    # messages about every block are made when they are needed: this runs after every step of every test
    if (block := _miscounted(pool.refs.tolist(), counted)) is not None:
        raise PluginContractError(
            f"law 1: block {block} has ref {pool.refs[block]}, but tables (and pins of copies) hold it "
            f"{counted[block]} times"
        )
    shared = int(np.count_nonzero(pool.refs > 1))
    demand(shared == pool.num_shared, f"law 1: {shared} blocks are shared, the running count says {pool.num_shared}")
    histogram = np.bincount(np.minimum(pool.refs, MOST_COUNTED), minlength=MOST_COUNTED + 1).tolist()
    demand(
        histogram == pool.histogram, f"law 1: blocks by references are {histogram}, the running counts {pool.histogram}"
    )
    saved = int((pool.refs[pool.refs > 1] - 1).sum())
    demand(saved == pool.num_saved, f"law 1: sharing saves {saved} blocks, the running count says {pool.num_saved}")
    counted = Counter(block for table in host.tables.values() for block in table)
    if (block := _miscounted(host.refs, counted)) is not None:
        raise PluginContractError(
            f"law 1: host block {block} has ref {host.refs[block]}, tables hold it {counted[block]} times"
        )


def _miscounted(refs: Numbers[int], counted: Mapping[int, int]) -> int | None:
    """The first block whose references are not as many as were counted."""
    return next((block for block, num in enumerate(refs) if num != counted.get(block, 0)), None)


def _check_free(allocator: PagedAllocator) -> None:
    pool, host = allocator.pool, allocator.host
    listed = allocator.check_free()
    demand(len(set(listed)) == len(listed), "law 2: a block is free twice")
    unreferenced = np.flatnonzero(pool.refs == 0).tolist()
    if sorted(listed) != unreferenced:
        raise PluginContractError(f"law 2: free list {sorted(listed)} is not the blocks with ref 0 {unreferenced}")
    demand(
        len(listed) == pool.num_free, f"law 2: {len(listed)} blocks are free, the running count says {pool.num_free}"
    )
    idle = all(seq is None for seq in allocator.owners)
    demand(not idle or len(listed) == pool.num_blocks, f"law 8: nobody is left, yet only {len(listed)} blocks are free")
    spare = [block for block, refs in enumerate(host.refs) if refs == 0]
    if sorted(host.free) != spare:
        raise PluginContractError(f"law 2: host free list {sorted(host.free)} is not the blocks with ref 0 {spare}")


def _check_table(allocator: PagedAllocator, row: int, seq: Sequence) -> None:
    name = f"branch {seq.index} of {seq.request.id} (row {row})"
    length, end, size = int(allocator.lengths[row]), int(allocator.ends[row]), allocator.block_size
    demand(seq.row == row, f"law 3: row {row} is owned by {name}, whose row is {seq.row}")
    hits = int(allocator.hit_tokens[row])
    demand(hits < seq.num_tokens, f"law 13: {hits} of the {seq.num_tokens} tokens of {name} are hits")
    if row in allocator.host.tables:
        demand(length == 0, f"law 3: {name} is swapped out but holds {length} device blocks")
        length = len(allocator.host.tables[row])
    demand(length == -(-end // size), f"laws 3 and 5: {name} holds {length} blocks of {size} for {end} positions")
    demand(seq.num_computed <= end, f"law 3: {name} computed {seq.num_computed} positions, its table covers {end}")
    if row in allocator.host.tables:
        return
    for block in allocator.tables[row, seq.num_computed // size : length].tolist():
        if end > seq.num_computed:
            refs = int(allocator.pool.refs[block])
            demand(refs == 1, f"law 4: {name} writes block {block}, which has ref {refs}")
            demand(not allocator.pool.frozen[block], f"law 4: {name} writes block {block}, which is published")
    allocator.check_path(row, seq)
