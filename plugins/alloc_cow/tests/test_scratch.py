"""The scratch budget: what it accepts, the allocator can do."""

from __future__ import annotations

import pytest

from paged_core.api.request import GroupState, Residency
from paged_core.errors import PluginContractError

WAITING = {"state": GroupState.WAITING, "residency": Residency.NONE}
DROPPED = {"state": GroupState.PREEMPTED, "residency": Residency.NONE}


def test_need_counts_fresh_blocks_only(bench):
    world = bench()
    seq = world.seq(range(10))
    group = world.group(seq, **WAITING)
    scratch = world.scratch()
    assert scratch.gap(group) == 10
    assert [scratch.need(group, n) for n in (1, 4, 5, 10)] == [1, 1, 2, 3]


def test_need_after_take_is_what_comes_on_top(bench):
    world = bench()
    group = world.group(world.seq(range(10)), **WAITING)
    scratch = world.scratch()
    assert scratch.take(group, 5)
    assert scratch.free == 14
    assert scratch.need(group, 3) == 0
    assert scratch.need(group, 5) == 1
    assert scratch.take(group, 5)
    assert scratch.free == 13
    with pytest.raises(PluginContractError, match="gap rule"):
        scratch.need(group, 1)


def test_a_hit_on_a_cached_free_block_consumes_it(bench):
    world = bench(num_blocks=4)
    seq, _ = world.start(range(9))
    world.free_seq(seq)
    group = world.group(world.seq(range(9)), **WAITING)
    scratch = world.scratch()
    assert scratch.free == 4
    assert scratch.gap(group) == 1
    assert scratch.need(group, 1) == 3  # two cached blocks leave the free list, one is fresh
    assert scratch.take(group, 1)
    assert scratch.free == 1


def test_a_hit_that_someone_holds_costs_nothing_and_two_newcomers_pay_once(bench):
    world = bench(num_blocks=8)
    seq, _ = world.start(range(9))
    twins = [world.group(world.seq(range(9)), **WAITING) for _ in range(2)]
    scratch = world.scratch()
    assert [scratch.need(group, 1) for group in twins] == [1, 1]
    world.free_seq(seq)
    scratch = world.scratch()
    assert scratch.take(twins[0], 1)
    assert scratch.need(twins[1], 1) == 1
    assert scratch.take(twins[1], 1)
    assert scratch.free == 4
    for group in twins:
        world.open(group.sequences[0])
    for group in twins:
        assert world.compute(group.sequences[0])
    assert world.free == 4


def test_give_back_counts_what_the_set_of_victims_frees(bench):
    world = bench()
    first, _ = world.start([*range(8), 1])
    second, hits = world.start([*range(8), 2])
    assert hits == 8
    victims = [world.group(first), world.group(second)]
    scratch = world.scratch(victims)
    assert scratch.give_back(victims[0]) == 1  # the two shared blocks stay with the other
    assert scratch.give_back(victims[1]) == 3
    assert scratch.free == 16


def test_a_hit_on_a_victims_block_is_not_free_twice(bench):
    world = bench(num_blocks=4)
    victim, _ = world.start(range(9))
    group, newcomer = world.group(victim), world.group(world.seq(range(9)), **WAITING)
    scratch = world.scratch([group])
    assert scratch.give_back(group) == 3
    assert scratch.need(newcomer, 1) == 3
    scratch = world.scratch([group])
    assert scratch.take(newcomer, 1)  # hits while the victim still holds them
    assert scratch.free == 0
    assert scratch.give_back(group) == 1  # so leaving frees only what the newcomer does not share


def test_law_11_who_took_cannot_leave_and_who_left_cannot_take(bench):
    world = bench()
    seqs = [world.start(range(i, i + 6))[0] for i in (0, 20, 40)]
    for seq in seqs:
        world.append(seq, 1)
    one, two, three = (world.group(seq) for seq in seqs)
    scratch = world.scratch([one, two, three], [one, two, three])
    assert scratch.take(one, 1)
    with pytest.raises(PluginContractError, match="law 11"):
        scratch.give_back(one)
    scratch.give_back(two)
    with pytest.raises(PluginContractError, match="law 11"):
        scratch.take(two, 1)
    with pytest.raises(PluginContractError, match="law 7"):
        scratch.give_back(two)
    assert scratch.take_decodes()
    with pytest.raises(PluginContractError, match="law 11"):
        scratch.give_back(three)


def test_take_decodes_leaves_out_who_took_or_left_and_is_all_or_nothing(bench):
    world = bench(num_blocks=8)
    seqs = [world.start(range(i, i + 8))[0] for i in (0, 20, 40)]
    for seq in seqs:
        world.append(seq, 1)
    one, two, three = groups = [world.group(seq) for seq in seqs]
    scratch = world.scratch(groups, groups)
    assert scratch.need_decodes() == 3
    assert not scratch.take_decodes()  # two blocks are free
    assert scratch.free == 2
    assert scratch.take(one, 1)
    assert scratch.need_decodes() == 2
    assert scratch.give_back(three) == 2
    assert scratch.need_decodes() == 1
    assert scratch.take_decodes()
    assert scratch.need_decodes() == 0
    assert scratch.free == 2
    assert two in groups


def test_a_swapped_group_is_charged_its_whole_return_and_the_copies_that_follow(bench):
    world = bench(num_blocks=12, num_host_blocks=12)
    parent, _ = world.start(range(6))
    branches = [parent, world.fork(parent), world.fork(parent)]
    group = world.group(*branches)
    world.swap(group, "out")
    group.state = GroupState.PREEMPTED
    for seq in branches:
        world.append(seq, seq.index)
    scratch = world.scratch()
    assert scratch.gap(group) == 3
    assert scratch.need(group, 3) == 2 + 2  # two distinct blocks come back, two of three sharers copy
    assert scratch.take(group, 3)
    world.swap(group, "in")
    for seq in branches:
        assert world.compute(seq)
    assert world.free == scratch.free
    assert all(world.intact(seq) for seq in branches)


def test_p10_a_recomputed_tree_is_charged_its_shared_span_once(bench):
    world = bench(num_blocks=16)
    parent, _ = world.start(range(10), num_sequences=3)
    branches = [parent, world.fork(parent), world.fork(parent)]
    for number, seq in enumerate(branches):
        world.append(seq, 100 + number)
        world.compute(seq)
        world.append(seq, 50)
    group = world.group(*branches, **DROPPED)
    for seq in branches:
        world.alloc.free(seq)
        world.rows.num_computed[seq.row] = 0
    world.alloc.pool.cached.clear()
    world.alloc.pool.keys[:] = [None] * 16
    scratch = world.scratch()
    assert scratch.gap(group) == 12 + 2 + 2
    assert scratch.need(group, 16) == 3 + 1 + 1  # the two full blocks are shared, each branch has its own tail
    assert group.num_reserved_rows == 3


def test_museum_21_the_budget_of_a_returner_is_its_whole_gap_not_one_chunk(bench):
    world = bench(num_blocks=10)
    group = world.group(world.seq(range(36)), **DROPPED)
    scratch = world.scratch()
    assert scratch.need(group, 8) == 2
    assert scratch.need(group, scratch.gap(group)) == 9


def test_victims_do_not_decode(bench):
    world = bench(num_blocks=8)
    seqs = [world.start(range(i, i + 8))[0] for i in (0, 20, 40)]
    for seq in seqs:
        world.append(seq, 1)
    groups = [world.group(seq) for seq in seqs]
    scratch = world.scratch(groups, groups)
    scratch.give_back(groups[2])
    assert scratch.need_decodes() == 2


def test_writing_a_published_block_is_charged_as_a_copy(bench):
    """A branch restored inside a published block, alone in it, copies it, and someone hits it in this very step."""
    world = bench(num_blocks=8)
    parent, _ = world.start(range(9))
    child = world.seq([*range(6), 70])
    world.rows.num_computed[child.row] = 6
    world.alloc.fork(parent, child)
    world.free_seq(parent)
    running, newcomer = world.group(child), world.group(world.seq(range(9)), **WAITING)
    scratch = world.scratch([running], [running])
    assert scratch.need_decodes() == scratch.need(running, 1) == 1
    assert scratch.take_decodes()
    assert scratch.take(newcomer, 1)
    assert world.open(newcomer.sequences[0]) == 8
    assert world.compute(child, 1)
    assert world.compute(newcomer.sequences[0])
    assert world.free == scratch.free
    assert world.intact(child)
    assert world.intact(newcomer.sequences[0])
