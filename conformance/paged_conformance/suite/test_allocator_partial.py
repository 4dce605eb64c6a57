"""Hits that end inside a block: the beginning is read, the block is copied before it is written (laws 4, 9, 13)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_shape import PLAIN, Origin, Shape
from paged_conformance.oracles.allocator_world import World
from paged_core.api.request import GroupState, Residency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_conformance.candidate import Candidate
    from paged_core.api.request import Group, Sequence

pytestmark = layer("behaviour")

partial = requires("prefix_cache", "partial_hits")


def makes(alloc: Candidate, **shape: int) -> World:
    """A world whose blocks hold several tokens: with one there is no inside."""
    world = World(alloc, Shape(**shape))
    assert world.size > 1, "partial_hits is declared, but a block of one token has no inside"
    return world


def waiting(world: World, tokens: Iterable[int]) -> Group:
    """A group that was never admitted."""
    return world.group(world.seq(tokens), state=GroupState.WAITING, residency=Residency.NONE)


def parting(world: World, own: int, num_blocks: int = 2) -> list[int]:
    """All but the last token of `num_blocks` blocks, which such prompts share, and one block of their own."""
    return [*range(num_blocks * world.size - 1), *range(own, own + world.size)]


@partial
def test_a_prompt_that_parts_inside_a_block_hits_up_to_there(alloc: Candidate) -> None:
    world = makes(alloc)
    world.start(parting(world, 500))
    _, hits = world.start(parting(world, 700))
    assert hits == 2 * world.size - 1, f"{hits} tokens hit where all but the last of two blocks are shared"
    world.drain()


@partial
def test_of_a_cached_prompt_only_the_last_token_is_computed(alloc: Candidate) -> None:
    """A10: the block that it will write is copied; the next one to come finds it all again, and more."""
    world = makes(alloc)
    prompt = range(2 * world.size)
    for _ in range(3):
        seq, hits = world.start(prompt)
        world.free_seq(seq)
    assert hits == 2 * world.size - 1
    _, deeper = world.start(range(3 * world.size))
    assert deeper >= 2 * world.size, "the copy that was written broke the chain"
    world.drain()


@partial
@pytest.mark.parametrize("owner_left", [False, True])
def test_the_source_of_a_copy_stays_what_it_was(alloc: Candidate, owner_left: bool) -> None:
    """Law 4: whoever owned it reads it on, and its whole prompt is found again."""
    world = makes(alloc, num_blocks=24)
    owner, _ = world.start(parting(world, 500))
    if owner_left:
        world.free_seq(owner)
    guest = world.seq(parting(world, 700))
    world.open(guest)
    source = world.model.tables[guest][-1]
    assert world.compute(guest)
    assert source not in world.model.tables[guest], "law 4: a published block was written"
    world.scratch()
    _, hits = world.start(parting(world, 500))
    assert world.lawful(hits, 3 * world.size - 2)
    assert hits >= 2 * world.size, "the owner's block is no hit any more"
    world.drain()


@partial
@pytest.mark.parametrize("owner_left", [False, True])
def test_several_newcomers_read_one_source_in_one_step(alloc: Candidate, owner_left: bool) -> None:
    world = makes(alloc, num_blocks=24)
    owner, _ = world.start(parting(world, 500))
    if owner_left:
        world.free_seq(owner)
    guests = [world.seq(parting(world, own)) for own in (600, 700, 800)]
    assert {world.open(seq) for seq in guests} == {2 * world.size - 1}
    assert len({world.model.tables[seq][-1] for seq in guests}) == 1
    assert all(world.grow(seq, seq.gap) for seq in guests)
    assert len({world.model.tables[seq][1] for seq in guests}) == 3
    for seq in guests:
        world.write(seq, seq.gap)
    world.drain()


@partial
def test_a_source_is_not_handed_out_in_the_step_that_copies_it(alloc: Candidate) -> None:
    """Law 9: nobody but the copy's maker held it; those who grow after it must not get it."""
    world = makes(alloc, num_blocks=7)
    owner, _ = world.start(range(2 * world.size))
    world.free_seq(owner)
    guest, greedy = world.seq([*range(2 * world.size - 1), 700]), world.seq(range(900, 900 + 5 * world.size))
    world.open(guest)
    world.open(greedy)
    assert world.grow(guest, guest.gap)
    assert not world.grow(greedy, 5 * world.size), "law 9: the source of a copy was taken before the copy ran"
    assert world.grow(greedy, 4 * world.size) or not world.exact
    world.scratch()
    assert world.grow(greedy, 5 * world.size) or not world.exact, "law 9: a source is let go when the next plan begins"
    world.drain()


def opened(world: World) -> Sequence:
    """A sequence that has hit a part of a block nobody else holds, and has not grown."""
    owner, _ = world.start(parting(world, 500))
    world.free_seq(owner)
    guest = world.seq(parting(world, 700))
    world.open(guest)
    return guest


def assert_whole(world: World) -> None:
    """The owner's prompt is found again beyond the part that was hit, and nothing leaks."""
    _, hits = world.start(parting(world, 500))
    assert hits >= 2 * world.size, "the owner's block is no hit any more"
    world.drain()


@partial
def test_a_source_is_let_go_with_the_sequence_that_copied_it(alloc: Candidate) -> None:
    """Law 8; `World` compares the free blocks after every call."""
    world = makes(alloc)
    guest = opened(world)
    assert world.compute(guest)
    world.free_seq(guest)
    assert_whole(world)


@requires("prefix_cache", "partial_hits", "shrink")
def test_a_source_is_let_go_when_its_copy_is_taken_back(alloc: Candidate) -> None:
    world = makes(alloc)
    guest = opened(world)
    assert world.compute(guest)
    world.shrink(guest, 1)
    assert_whole(world)


@requires("prefix_cache", "partial_hits", "swap")
@pytest.mark.parametrize("copied", [False, True])
def test_a_sequence_moves_without_its_source(alloc: Candidate, copied: bool) -> None:
    """What it hit goes with it, and is its own when it comes back."""
    world = makes(alloc, num_host_blocks=8)
    guest = opened(world)
    assert not copied or world.compute(guest)
    group = world.group(guest)
    assert world.swap_out(group) is not None
    assert world.swap_in(group) is not None
    assert copied or world.compute(guest)
    assert_whole(world)


@partial
def test_a_source_that_was_never_copied_can_be_left(alloc: Candidate) -> None:
    world = makes(alloc)
    world.free_seq(opened(world))
    assert_whole(world)


@requires("prefix_cache", "partial_hits", "fork")
def test_branches_of_a_sequence_copy_its_source_each_for_itself(alloc: Candidate) -> None:
    world = makes(alloc, num_blocks=24)
    guest = opened(world)
    child = world.fork(guest)
    world.append(child, 900)
    assert all(world.compute(seq) for seq in (guest, child))
    assert_whole(world)


@partial
@pytest.mark.parametrize("owner_left", [False, True])
def test_a_scratch_counts_the_copy_and_its_source(alloc: Candidate, owner_left: bool) -> None:
    """The copy is one block more; a source that is free is consumed too, for it must outlive the step."""
    world = makes(alloc, num_blocks=24)
    owner, _ = world.start(parting(world, 500))
    if owner_left:
        world.free_seq(owner)
    groups = [waiting(world, parting(world, own)) for own in (700, 800)]
    plan = Plan(world, [])
    needs = []
    for group in groups:
        gap = plan.scratch.gap(group)
        assert gap == world.size
        needs.append(plan.scratch.need(group, gap))
        assert plan.take(group, gap)
    if world.exact:
        assert needs == [4 if owner_left else 2, 2], "the first pays for what was free: two hits; each for two blocks"
    free = plan.scratch.free
    plan.apply()
    assert world.free == free or not world.exact, "a scratch counts exactly what opening and growing consume"
    world.drain()


@partial
def test_a_prompt_that_fills_the_pool_still_fits_when_a_part_of_it_is_cached(alloc: Candidate) -> None:
    """A copy beside its source must not make impossible what fits alone."""
    world = makes(alloc, num_blocks=3)
    owner, _ = world.start([*range(2 * world.size - 1), *range(500, 501 + world.size)])
    world.free_seq(owner)
    group = waiting(world, [*range(2 * world.size - 1), *range(700, 701 + world.size)])
    plan = Plan(world, [])
    assert plan.take(group, plan.scratch.gap(group)), "a lone prompt of the pool's size has no room"
    plan.apply()
    world.drain()


@partial
def test_the_longest_of_many_beginnings_is_taken(alloc: Candidate) -> None:
    world = makes(alloc, num_blocks=64)
    head, draw = list(range(world.size)), random.Random(0)
    tails = [[draw.randrange(2) for _ in range(world.size)] for _ in range(24)]
    for tail in tails:
        seq, _ = world.start([*head, *tail, 9])
        world.free_seq(seq)
    for _ in range(12):
        mine = [draw.randrange(2) for _ in range(world.size)]
        best = max(common(mine, tail) for tail in tails)
        seq = world.seq([*head, *mine, 9])
        hits = world.open(seq)
        assert hits == world.size + best or (world.size > 16 and world.lawful(hits, world.size + best))
        world.free_seq(seq)
    world.drain()


def common(one: list[int], other: list[int]) -> int:
    """Tokens that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


@partial
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Origin(salt="s1"), Origin(salt="s2")),
        (Origin(salt="s1"), PLAIN),
        (Origin(adapter="k"), Origin(salt="k")),
        (PLAIN, Origin(cold=True)),
    ],
)
def test_beginnings_are_shared_with_nobody_else(alloc: Candidate, one: Origin, other: Origin) -> None:
    """Law 14, A14, A17; and a cold sequence takes no part of a block either."""
    world = makes(alloc, num_blocks=24)
    world.start(parting(world, 500), one)
    _, foreign = world.start(parting(world, 700), other)
    _, own = world.start(parting(world, 800), one)
    assert (foreign, own) == (0, 2 * world.size - 1), f"{other} hit {foreign} tokens of {one}, which itself hit {own}"
    world.drain()
