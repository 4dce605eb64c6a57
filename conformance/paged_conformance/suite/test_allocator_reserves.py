"""What is held beyond tokens: told truly, of use to its holder, whole again later. Who never fits is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_shape import Shape
from paged_conformance.oracles.allocator_world import World
from paged_core.api.request import GroupState, Residency

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.api.request import Sequence

pytestmark = layer("behaviour")


def held_slots(world: World, *seqs: Sequence) -> list[int]:
    """What the allocator says that resident sequences hold."""
    rows = np.array([seq.row for seq in seqs], dtype=np.int32)
    return [int(slots) for slots in world.alloc.held_slots(rows, world.rows.num_computed[rows])]


def test_held_slots_are_no_fewer_than_tokens_and_no_more_than_used_blocks_have(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=16, max_blocks=4))
    lengths = (1, world.size, world.size + 1)
    seqs = [world.start(range(100 * length, 101 * length))[0] for length in lengths]
    held = held_slots(world, *seqs)
    assert all(slots >= length for slots, length in zip(held, lengths, strict=True)), f"{lengths} tokens hold {held}"
    assert sum(held) <= world.alloc.stats().used * world.size, f"{held} slots are held: {world.alloc.stats()}"
    if world.exact:
        assert held == [world.model.cover(length) * world.size for length in lengths], f"laws 3 and 5: {held}"
    world.drain()


@requires("reserves_ahead")
def test_tokens_within_what_is_set_aside_take_no_block_and_move_nothing(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=16, max_blocks=4))
    seq, _ = world.start(range(world.size + 1))
    world.start(range(900, 901 + world.size))
    held, before = held_slots(world, seq)[0], world.alloc.stats()
    assert held <= world.rows.max_len, f"{held} slots are held for a sequence of at most {world.rows.max_len}"
    for token in range(held - seq.num_tokens):
        world.append(seq, token)
        assert world.scratch([group := world.group(seq)], [group]).need_decodes() == 0
        assert world.compute(seq)
    after = world.alloc.stats()
    assert (after.free, after.num_copies) == (before.free, before.num_copies), f"{before} became {after}"
    world.drain()


def test_a_request_is_refused_exactly_if_the_empty_pool_has_no_room_for_its_prompt(alloc: Candidate) -> None:
    for num_blocks in (1, 3, 6):
        world = World(alloc, Shape(num_blocks=num_blocks, max_blocks=8))
        for length in range(1, num_blocks * world.size + 1):
            seq = world.seq(range(length))
            group = world.group(seq, state=GroupState.WAITING, residency=Residency.NONE)
            reason, plan = world.alloc.refuses(seq.request), Plan(world, [])
            fits = plan.take(group, plan.scratch.gap(group))
            assert fits == (reason is None), f"{num_blocks} blocks, a prompt of {length}: {reason!r}, take says {fits}"
            assert reason is None or reason.strip(), "a request is refused without a reason"
            plan.apply()
            world.drain()


def test_a_pool_that_was_emptied_is_as_good_as_a_new_one(alloc: Candidate) -> None:
    """Law 8 for those whose room can lie in pieces: what fitted before anyone came fits again after all have left."""

    def largest(world: World) -> int:
        for length in range(world.num_blocks * world.size, 0, -1):
            seq = world.seq(range(5000, 5000 + length))
            world.open(seq)
            fits = world.grow(seq, length)
            world.free_seq(seq)
            if fits:
                return length
        return 0

    world = World(alloc, Shape(num_blocks=11, max_blocks=16))
    best = largest(world)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        seqs = [world.seq(range(1000 * i, 1000 * i + (2 * i + 1) * world.size)) for i in range(4)]
        for seq in seqs:
            world.open(seq)
            world.compute(seq)
        for index in order:
            world.free_seq(seqs[index])
        world.scratch()
        assert largest(world) == best, f"law 8: a prompt of {best} tokens fitted a new pool and this one no more"
    world.drain()
