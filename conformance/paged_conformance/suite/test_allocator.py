"""Block allocators: blocks on demand, sharing, copy-on-write, shrinking, and wrong use refused (laws 1 to 5, 8, 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.allocator_shape import Shape
from paged_conformance.oracles.allocator_world import World
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_conformance.candidate import Candidate
    from paged_core.api.request import Sequence

pytestmark = layer("behaviour")

MANDATORY_SIZE = 16
BLOCK_SIZES = (1, 2, 3, 5, 8, 16, 32, 63, 64, 128, 256)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_lengths_around_a_block_end_take_exactly_the_blocks_they_fill(alloc: Candidate, block_size: int) -> None:
    shape = Shape(block_size=block_size)
    fit = alloc.fit(shape.need(alloc))
    if not fit.ok:
        assert block_size != MANDATORY_SIZE, f"block size 16 is mandatory, yet refused: {fit.reasons}"
        assert fit.reasons, f"block size {block_size} is refused without a reason"
        return
    world = World(alloc, shape)
    for length in sorted({1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1} - {0}):
        world.start(range(1000, 1000 + length))
        world.drain()


def test_blocks_come_one_at_a_time_as_tokens_do(alloc: Candidate) -> None:
    world = World(alloc)
    seq, _ = world.start(range(world.size - 1))
    used = [world.alloc.stats().used]
    for token in range(world.size + 2):
        world.append(seq, token)
        assert world.compute(seq)
        used.append(world.alloc.stats().used)
    if world.exact:
        wanted = [world.model.cover(world.size - 1 + i) for i in range(world.size + 3)]
        assert used == wanted, f"law 3: decoding one token at a time used {used} blocks, not {wanted}"
        waste = -seq.num_tokens % world.size
        assert world.alloc.stats().tail_waste_slots == waste, f"law 5: the tail wastes {waste} slots"


def test_a_chunked_prompt_takes_the_same_blocks_as_a_whole_one(alloc: Candidate) -> None:
    world = World(alloc)
    seq = world.seq(range(3 * world.size + 1))
    world.open(seq)
    while seq.gap:
        assert world.compute(seq, min(seq.gap, world.size // 2 + 1))
    assert len(world.model.tables[seq]) == 4
    world.drain()


def test_no_room_answers_none_and_changes_nothing(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=3))
    world.start(range(2 * world.size))
    other = world.seq(range(1000, 1000 + 2 * world.size))
    world.open(other)
    before = world.alloc.stats()
    assert not world.grow(other, 2 * world.size), "law 1: three blocks hold two sequences of two"
    assert world.alloc.stats() == before, "a grow that found no room changed the pool"
    assert world.compute(other, world.size) or not world.exact, "the last free block was not found"


def test_every_block_of_the_pool_can_be_used_and_is_handed_out_once(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=8, max_blocks=2))
    for number in range(4):
        world.start(range(1000 * number, 1000 * number + 2 * world.size))
    assert world.model.free == 0
    world.drain()


def test_after_the_last_sequence_left_every_block_is_free(alloc: Candidate) -> None:
    """A05: also for lengths one short of, on and one past a block end."""
    world = World(alloc, Shape(num_blocks=5))
    for extra in (-1, 0, 1):
        seq, _ = world.start(range(2 * world.size + extra))
        world.append(seq, 1)
        assert world.compute(seq)
        world.drain()


def test_freeing_a_sequence_without_a_table_does_nothing(alloc: Candidate) -> None:
    world = World(alloc, Shape(max_blocks=2))
    world.start(range(world.size + 1))
    gone, _ = world.start(range(50, 50 + world.size + 1))
    world.free_seq(gone)
    never_opened = world.seq([1, 2])
    before = world.alloc.stats()
    for seq in (gone, gone, never_opened):
        world.alloc.free(seq)
        world.verify()
    assert world.alloc.stats() == before, "law 8: freeing a sequence without a table changed the pool"


def test_a_freed_block_is_never_in_two_tables_afterwards(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=6, max_blocks=2))
    for round_number in range(6):
        seqs = [
            world.start(range(100 * i + round_number, 100 * i + round_number + 2 * world.size))[0] for i in range(3)
        ]
        for seq in seqs if round_number % 2 else reversed(seqs):
            world.free_seq(seq)
    world.drain()


# -- sharing ----------------------------------------------------------------------------------------------------------


@requires("fork")
@pytest.mark.parametrize("num_branches", [2, 3, 5])
def test_of_k_sharers_the_first_k_minus_1_copy_and_the_last_writes_in_place(
    alloc: Candidate, num_branches: int
) -> None:
    """A03; a fork costs nothing, only the partial block is ever copied, and each branch copies at most once."""
    world = World(alloc)
    seq, _ = world.start(range(world.size + world.size // 2))
    branches = [seq, *(world.fork(seq) for _ in range(num_branches - 1))]
    for number, branch in enumerate(branches):
        world.append(branch, 100 + number)
        assert world.compute(branch)
    partial = 1 if (world.size + world.size // 2) % world.size else 0
    assert world.alloc.stats().num_copies == partial * (num_branches - 1)
    assert len({world.model.tables[branch][0] for branch in branches}) == 1, "the full block must stay shared"
    for branch in branches:
        world.append(branch, 7)
        assert world.compute(branch)
    assert world.alloc.stats().num_copies == partial * (num_branches - 1), "forked once, copied twice"
    world.drain()


@requires("fork")
def test_a_fork_on_a_block_end_copies_nothing(alloc: Candidate) -> None:
    world = World(alloc)
    parent, _ = world.start(range(2 * world.size))
    for seq in (parent, world.fork(parent)):
        world.append(seq, 5)
        assert world.compute(seq)
    assert world.alloc.stats().num_copies == 0
    world.drain()


@requires("fork")
def test_copy_on_write_needs_no_more_room_than_it_takes(alloc: Candidate) -> None:
    """With k - 1 blocks left, k sharers of the last block can all write."""
    world = World(alloc, Shape(num_blocks=3))
    parent, _ = world.start(range(world.size + max(1, world.size // 2)))
    branches = [parent, world.fork(parent)]
    for number, seq in enumerate(branches):
        world.append(seq, number)
    if world.size > 1:
        assert world.grow_decodes(branches), "law 1: one block is free, two sharers need one"
        for seq in branches:
            world.write(seq, 1)
        assert world.model.free == 0
    world.drain()


@requires("fork")
def test_a_fork_never_allocates_and_outlives_its_parent(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=2))
    parent, _ = world.start(range(2 * world.size))
    assert world.model.free == 0
    child = world.fork(parent)
    world.free_seq(parent)
    assert world.model.free == 0, "law 1: the child's blocks left with the parent"
    world.append(child, 1)
    assert not world.grow(child, 1)
    world.drain()


@requires("fork")
def test_a_forked_tree_gives_back_every_block_in_any_order(alloc: Candidate) -> None:
    """A01: references are counted per table and end at zero."""
    for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)):
        world = World(alloc, Shape(num_blocks=24))
        root, _ = world.start(range(world.size + 1))
        tree = [root, world.fork(root), world.fork(root)]
        tree += [world.fork(tree[1]), world.fork(tree[2])]
        for number, seq in enumerate(tree[:4]):
            world.append(seq, 10 + number)
            assert world.compute(seq)
        for index in order:
            world.free_seq(tree[index])
        world.drain()


@requires("fork")
def test_a_branch_forked_in_its_parents_past_shares_only_what_covers_it(alloc: Candidate) -> None:
    """How a preempted tree comes back: the parent has computed beyond the point where the branch left."""
    world = World(alloc)
    parent, _ = world.start(range(3 * world.size))
    at = world.size + max(1, world.size // 2)
    child = world.fork(parent, at)
    world.append(child, 77, 78)
    assert world.compute(child)
    world.free_seq(parent)
    world.drain()


@requires("fork")
def test_growing_many_at_once_equals_growing_one_by_one(alloc: Candidate) -> None:
    def decoding() -> tuple[World, list[Sequence]]:
        world = World(alloc, Shape(num_blocks=32))
        alone = [world.start(range(100 * i, 100 * i + world.size + i))[0] for i in range(3)]
        parent, _ = world.start(range(900, 900 + world.size + world.size // 2))
        seqs = [*alone, parent, world.fork(parent), world.fork(parent)]
        for seq in seqs:
            world.append(seq, 5)
        return world, seqs

    many, seqs = decoding()
    assert many.grow_decodes(seqs)
    single, twins = decoding()
    assert all(single.grow(seq, 1) for seq in twins)
    for world, members in ((many, seqs), (single, twins)):
        for seq in members:
            world.write(seq, 1)
    if many.exact:
        assert many.alloc.stats() == single.alloc.stats(), "grow_decodes and grow leave different pools"
    many.drain()


# -- shrinking --------------------------------------------------------------------------------------------------------


@requires("shrink")
@pytest.mark.parametrize("keep", ["nothing", "a block end", "inside a block", "everything"])
def test_shrinking_gives_back_the_blocks_wholly_beyond(alloc: Candidate, keep: str) -> None:
    world = World(alloc)
    seq, _ = world.start(range(3 * world.size + 1))
    kept = {"nothing": 0, "a block end": world.size, "inside a block": world.size + 1}.get(keep, seq.num_tokens)
    world.shrink(seq, kept)
    world.append(seq, *range(500, 500 + world.size))
    assert world.compute(seq)
    world.drain()


@requires("shrink", "prefix_cache")
def test_tokens_that_replace_shrunk_ones_are_hit_under_their_own_name(alloc: Candidate) -> None:
    world = World(alloc)
    seq, _ = world.start(range(2 * world.size + 1))
    world.shrink(seq, world.size)
    world.append(seq, *range(500, 500 + world.size + 1))
    assert world.compute(seq)
    _, hits = world.start([*range(world.size), *range(500, 500 + world.size), 0])
    assert hits == 2 * world.size, f"{hits} tokens hit: the new content was not published under its own tokens"
    world.drain()


# -- wrong use --------------------------------------------------------------------------------------------------------

WRONG_USES: dict[str, Callable[[World, Sequence], object]] = {
    "opening twice": lambda world, seq: world.alloc.open(seq),
    "opening without a row": lambda world, seq: world.alloc.open(type(seq)(seq.request)),
    "growing what was never opened": lambda world, seq: world.alloc.grow(world.seq([1]), 1),
    "growing beyond the table": lambda world, seq: world.alloc.grow(seq, world.rows.max_len + 1),
    "publishing what was never opened": lambda world, seq: world.alloc.publish(world.seq([1])),
}


@pytest.mark.parametrize("use", WRONG_USES)
def test_wrong_use_is_refused_and_changes_nothing(alloc: Candidate, use: str) -> None:
    world = World(alloc, Shape(max_blocks=2))
    world.start(range(500, 500 + world.size))
    seq, _ = world.start(range(world.size + 1))
    before = world.alloc.stats()
    with pytest.raises(PluginContractError):
        WRONG_USES[use](world, seq)
    assert world.alloc.stats() == before, f"{use} was refused, but the pool changed"
    world.verify()
    world.drain()


def test_growing_what_was_freed_is_refused(alloc: Candidate) -> None:
    world = World(alloc)
    seq, _ = world.start(range(world.size + 1))
    world.free_seq(seq)
    with pytest.raises(PluginContractError):
        world.alloc.grow(seq, 1)
    world.drain()


@requires("fork")
def test_forking_onto_a_taken_row_or_from_nothing_is_refused(alloc: Candidate) -> None:
    world = World(alloc)
    seq, _ = world.start(range(world.size + 1))
    for parent, child in ((seq, seq), (world.seq([1]), world.seq([1]))):
        with pytest.raises(PluginContractError):
            world.alloc.fork(parent, child)
        world.verify()
    world.drain()
