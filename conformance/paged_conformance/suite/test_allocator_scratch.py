"""Scratch budgets: need, take and give_back agree, and what was accepted can be carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_shape import Shape
from paged_conformance.oracles.allocator_world import World
from paged_core.api.request import Group, GroupState, Residency
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paged_conformance.candidate import Candidate

pytestmark = layer("behaviour")


def waiting(world: World, tokens: Iterable[int]) -> Group:
    """A group that was never admitted."""
    return world.group(world.seq(tokens), state=GroupState.WAITING, residency=Residency.NONE)


def decoding(world: World, *lengths: int) -> list[Group]:
    """Running groups of one branch that decode."""
    groups = []
    for number, length in enumerate(lengths):
        seq, _ = world.start(range(1000 * (number + 1), 1000 * (number + 1) + length))
        world.append(seq, 1)
        groups.append(world.group(seq))
    return groups


def test_need_counts_whole_blocks_of_a_newcomer(alloc: Candidate) -> None:
    world = World(alloc)
    group, scratch = waiting(world, range(2 * world.size + 2)), world.scratch()
    assert scratch.gap(group) == 2 * world.size + 2
    needs = [scratch.need(group, n) for n in (1, world.size, world.size + 1, 2 * world.size + 2)]
    wanted = [1, 1, 2, world.model.cover(2 * world.size + 2)]
    assert needs == wanted or (not world.exact and all(n >= w for n, w in zip(needs, wanted, strict=True))), needs


def test_need_after_take_is_what_comes_on_top(alloc: Candidate) -> None:
    world = World(alloc)
    group = waiting(world, range(3 * world.size))
    plan = Plan(world, [])
    assert plan.take(group, world.size)
    assert plan.take(group, world.size)
    assert plan.take(group, world.size)
    if world.exact:
        assert plan.scratch.free == world.num_blocks - 3, "law 5: three takes of one block each"
    plan.apply()
    world.drain()


def test_what_does_not_fit_is_refused_and_nothing_is_taken(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=3))
    group = waiting(world, range(4 * world.size))
    plan = Plan(world, [])
    assert not plan.take(group, 3 * world.size + 1), "scratch: four blocks were taken from a pool of three"
    assert plan.scratch.free == 3
    assert plan.take(group, 3 * world.size) or not world.exact
    plan.apply()
    world.drain()


def test_a_scratch_plans_and_allocates_nothing(alloc: Candidate) -> None:
    world = World(alloc, Shape(max_blocks=2))
    running = decoding(world, world.size, world.size)
    before = world.alloc.stats()
    plan = Plan(world, running)
    plan.give_back(running[0])
    plan.take_decodes()
    plan.take(waiting(world, range(world.size + 1)), world.size + 1)
    assert world.alloc.stats() == before, "planning changed the pool"
    world.verify()
    assert Plan(world, running).scratch.free == before.free, "a new scratch remembers an old plan"


@requires("prefix_cache")
def test_a_hit_on_a_cached_free_block_consumes_it(alloc: Candidate) -> None:
    """MUSEUM: such a block counts as free until somebody hits it."""
    world = World(alloc, Shape(num_blocks=4))
    seq, _ = world.start(range(2 * world.size + 1))
    world.free_seq(seq)
    plan = Plan(world, [])
    group = waiting(world, range(2 * world.size + 1))
    assert plan.scratch.free == 4
    assert plan.scratch.gap(group) == 1
    assert plan.take(group, 1)
    assert plan.scratch.free <= 1, "scratch: two cached blocks leave the free list and one is fresh"
    other = waiting(world, range(900, 900 + 2 * world.size))
    assert not plan.take(other, 2 * world.size), "scratch: a block was promised to two"
    plan.apply()
    world.drain()


@requires("prefix_cache")
def test_a_hit_that_somebody_holds_costs_nothing_and_newcomers_pay_once(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=8))
    seq, _ = world.start(range(2 * world.size + 1))
    twins = [waiting(world, range(2 * world.size + 1)) for _ in range(2)]
    scratch = world.scratch()
    if world.exact:
        assert [scratch.need(group, 1) for group in twins] == [1, 1]
    world.free_seq(seq)
    plan = Plan(world, [])
    assert all(plan.take(group, 1) for group in twins)
    if world.exact:
        assert plan.scratch.free == 4, "two shared hits and a fresh block each"
    plan.apply()
    assert world.free == plan.scratch.free or not world.exact
    world.drain()


@requires("prefix_cache")
def test_a_block_shared_among_victims_is_freed_by_the_last_of_them(alloc: Candidate) -> None:
    world = World(alloc)
    groups = []
    for last in (1, 2, 3):
        seq, _ = world.start([*range(2 * world.size), last])
        groups.append(world.group(seq))
    plan = Plan(world, groups)
    freed = [plan.give_back(group) for group in groups]
    if world.exact:
        assert freed == [1, 1, 3]
    plan.apply()
    assert world.free == world.num_blocks
    world.drain()


@requires("prefix_cache")
def test_a_hit_on_a_victims_block_is_not_free_twice(alloc: Candidate) -> None:
    for newcomer_first in (True, False):
        world = World(alloc, Shape(num_blocks=4))
        victim, _ = world.start(range(2 * world.size + 1))
        leaving, newcomer = world.group(victim), waiting(world, range(2 * world.size + 1))
        plan = Plan(world, [leaving])
        if newcomer_first:
            plan.take(newcomer, 1)
        plan.give_back(leaving)
        if not newcomer_first:
            plan.take(newcomer, 1)
        assert plan.scratch.free <= 1, "scratch: the newcomer keeps the two blocks that it hit"
        plan.apply()
        world.drain()


def test_who_took_cannot_leave_and_who_left_cannot_take(alloc: Candidate) -> None:
    """Laws 7 and 11."""
    world = World(alloc, Shape(max_blocks=2))
    one, two, three = decoding(world, world.size, world.size, world.size)
    plan = Plan(world, [one, two, three])
    assert plan.take(one, 1)
    plan.give_back(two)
    free = plan.scratch.free
    stranger = waiting(world, [1])
    wrong_uses: list[Callable[[], object]] = [
        lambda: plan.scratch.give_back(one),
        lambda: plan.scratch.take(two, 1),
        lambda: plan.scratch.give_back(two),
        lambda: plan.scratch.give_back(stranger),
    ]
    for wrong in wrong_uses:
        with pytest.raises(PluginContractError):
            wrong()
        assert plan.scratch.free == free, "law 11: a refused call changed the budget"
    assert plan.take_decodes()
    with pytest.raises(PluginContractError):
        plan.scratch.give_back(three)
    plan.apply()
    world.drain()


def test_take_decodes_leaves_out_who_took_or_left_and_is_all_or_nothing(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=8 if alloc.has("reserves_ahead") else 5, max_blocks=2))
    groups = decoding(world, world.size, world.size, world.size)
    plan = Plan(world, groups)
    assert not plan.take_decodes() or not world.exact, "two blocks are free, three sequences need one"
    if world.exact:
        assert plan.scratch.need_decodes() == 3
        assert plan.take(groups[0], 1)
        assert plan.scratch.need_decodes() == 2
        plan.give_back(groups[2])
        assert plan.scratch.need_decodes() == 1
        assert plan.take_decodes()
        assert plan.scratch.need_decodes() == 0, "decodes that were taken are not needed again"
    plan.apply()
    world.drain()


@requires("fork")
@pytest.mark.parametrize("num_branches", [2, 3, 4])
def test_need_of_a_gang_is_need_decodes(alloc: Candidate, num_branches: int) -> None:
    """Of k branches that share a partial block, k - 1 copy it, taken one way or the other."""
    world = World(alloc)
    parent, _ = world.start(range(world.size + max(1, world.size // 2)))
    branches = [parent, *(world.fork(parent) for _ in range(num_branches - 1))]
    for seq in branches:
        world.append(seq, seq.index)
    group = world.group(*branches)
    plan = Plan(world, [group])
    by_columns, one_by_one = plan.scratch.need_decodes(), plan.scratch.need(group, num_branches)
    assert by_columns == one_by_one, f"take_decodes needs {by_columns}, take needs {one_by_one} for the same tokens"
    free = plan.scratch.free
    assert plan.take_decodes()
    plan.apply()
    assert not world.exact or free - world.free == by_columns
    world.drain()


@requires("fork")
def test_a_recomputed_tree_is_charged_its_shared_span_once(alloc: Candidate) -> None:
    """P10: `need` of the whole gap is what the restore consumes."""
    world = World(alloc, Shape(num_blocks=24, prefix_cache=False))
    at = 2 * world.size + max(1, world.size // 2)
    parent, _ = world.start(range(at))
    branches = [parent, world.fork(parent), world.fork(parent)]
    for number, seq in enumerate(branches):
        world.append(seq, 100 + number, 50)
    for seq in branches:
        world.drop(seq)
    group = world.group(*branches, state=GroupState.PREEMPTED, residency=Residency.NONE)
    scratch = world.scratch()
    assert scratch.gap(group) == at + 2 * len(branches)
    need, free = scratch.need(group, at + 2 * len(branches)), world.free
    world.open(parent)
    assert world.compute(parent)
    for seq in branches[1:]:
        world.rejoin(seq)
        assert world.compute(seq)
    consumed = free - world.free
    assert consumed == need if world.exact else consumed <= need, f"{need} blocks charged, {consumed} consumed"
    world.drain()
