"""The host tier: groups leave and come back whole, a shared block moves once, contents survive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_shape import Shape
from paged_conformance.oracles.allocator_world import World
from paged_core.api.request import Group, GroupState
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("behaviour")


def tree(world: World, num_branches: int) -> Group:
    """A group whose branches share a full block and a partial one, each about to write its next token."""
    parent, _ = world.start(range(world.size + max(1, world.size // 2)))
    branches = [parent, *(world.fork(parent) for _ in range(num_branches - 1))]
    for number, seq in enumerate(branches):
        world.append(seq, number)
    return world.group(*branches)


@requires("swap")
@pytest.mark.parametrize("length", [-1, 0, 1])
def test_a_sequence_comes_back_with_its_contents(alloc: Candidate, length: int) -> None:
    world = World(alloc, Shape(num_blocks=8, num_host_blocks=8))
    seq, _ = world.start(range(2 * world.size + length))
    group = world.group(seq)
    assert world.swap_out(group) is not None
    assert world.model.free == 8, "law 3: a swapped sequence holds host blocks only"
    filler, _ = world.start(range(900, 900 + 8 * world.size))  # overwrites all that was left behind
    world.free_seq(filler)
    assert world.swap_in(group) is not None
    world.append(seq, 1)
    assert world.compute(seq)
    world.drain()


@requires("swap", "fork")
@pytest.mark.parametrize("num_branches", [2, 4])
def test_a_shared_block_moves_once_and_is_shared_again(alloc: Candidate, num_branches: int) -> None:
    world = World(alloc, Shape(num_blocks=12, num_host_blocks=12))
    group = tree(world, num_branches)
    out = world.swap_out(group)
    back = world.swap_in(group)
    assert out is not None
    assert back is not None
    assert len(out) == len(back) == 2, f"two blocks in {num_branches} tables moved as {out} and {back}"
    for seq in group.live:
        assert world.compute(seq)
    world.drain()


@requires("swap", "prefix_cache")
def test_a_block_shared_with_a_group_that_stays_is_copied_and_stays(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=12, num_host_blocks=12))
    leaving, _ = world.start(range(2 * world.size + 1))
    staying, hits = world.start(range(2 * world.size + 1))
    assert hits == 2 * world.size
    group = world.group(leaving)
    assert world.swap_out(group) is not None
    world.append(staying, 5)
    assert world.compute(staying)
    assert world.swap_in(group) is not None
    world.drain()


@requires("swap")
def test_without_host_room_nothing_leaves(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=8, num_host_blocks=2))
    seq, _ = world.start(range(2 * world.size + 1))
    before = world.alloc.stats()
    assert world.swap_out(world.group(seq)) is None, "three blocks went to two places"
    assert world.alloc.stats() == before, "a swap that found no room changed the pool"
    world.drain()


@requires("swap")
def test_without_device_room_nothing_comes_back(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=4, num_host_blocks=4))
    seq, _ = world.start(range(2 * world.size + 1))
    group = world.group(seq)
    assert world.swap_out(group) is not None
    filler, _ = world.start(range(900, 900 + 2 * world.size))
    before = world.alloc.stats()
    assert world.swap_in(group) is None, "law 1: three blocks came back into two"
    assert world.alloc.stats() == before, "a return that found no room changed the pool"
    world.free_seq(filler)
    assert world.swap_in(group) is not None or not world.exact
    world.drain()


@requires("swap")
def test_a_group_that_ends_while_away_gives_back_its_host_blocks(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=8, num_host_blocks=8))
    seq, _ = world.start(range(2 * world.size + 1))
    assert world.swap_out(world.group(seq)) is not None
    world.free_seq(seq)
    stats = world.alloc.stats()
    assert (stats.host_free, stats.free) == (8, 8), f"law 8: {stats} after an abort on the host"
    world.drain()


@requires("swap", "fork")
def test_a_swapped_group_is_charged_its_whole_return_and_the_copies_that_follow(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=12, num_host_blocks=12))
    group = tree(world, 3)
    assert world.swap_out(group) is not None
    group.state = GroupState.PREEMPTED
    plan = Plan(world, [])
    assert plan.take(group, 3)
    plan.apply()
    assert world.free == plan.scratch.free or not world.exact
    world.drain()


@requires("swap")
def test_swapping_what_is_not_there_is_refused(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=8, num_host_blocks=8))
    seq, _ = world.start(range(world.size + 1))
    before = world.alloc.stats()
    with pytest.raises(PluginContractError):
        world.alloc.swap_in(world.group(seq))
    with pytest.raises(PluginContractError):
        world.alloc.swap_out(world.group(world.seq([1])))
    assert world.alloc.stats() == before
    group = world.group(seq)
    assert world.swap_out(group) is not None
    for wrong in (lambda: world.alloc.swap_out(group), lambda: world.alloc.grow(seq, 1)):
        with pytest.raises(PluginContractError):
            wrong()
        world.verify()
    world.drain()
