"""Behaviour of CowAllocator, one promise a test."""

from __future__ import annotations

import pytest

from paged_core.api.request import GroupState, Residency
from paged_core.errors import PluginContractError


def test_blocks_come_one_at_a_time_as_tokens_do(bench):
    world = bench(block_size=4)
    seq, _ = world.start(range(3))
    used = []
    for token in range(6):
        world.append(seq, token)
        world.compute(seq)
        used.append(world.alloc.stats().used)
    assert used == [1, 2, 2, 2, 2, 3]
    assert world.alloc.stats().tail_waste_slots == 3


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 63, 256])
def test_any_block_size_holds_a_prompt_exactly(bench, block_size):
    world = bench(num_blocks=64, block_size=block_size)
    seq, _ = world.start(range(50))
    assert len(world.table(seq)) == -(-50 // block_size)
    assert world.intact(seq)
    world.free_seq(seq)
    world.alloc.check()
    assert world.free == 64


def test_no_room_changes_nothing(bench):
    world = bench(num_blocks=3)
    _seq, _ = world.start(range(8))
    other = world.seq(range(20, 30))
    world.open(other)
    before = world.alloc.stats()
    assert world.alloc.grow(other, 10) is None
    assert world.alloc.stats() == before
    world.alloc.check()


@pytest.mark.parametrize(("length", "when"), [(7, "on a block end"), (8, "one past it"), (6, "one short")])
def test_a05_the_last_token_at_a_block_end_returns_exactly_the_pool(bench, length, when):
    world = bench(num_blocks=5)
    seq, _ = world.start(range(length))
    world.append(seq, 1)
    world.compute(seq)
    world.free_seq(seq)
    world.free_rows.pop()
    world.alloc.free(seq)  # a second release of a sequence without a table is no release
    world.alloc.check()
    assert world.free == 5, when


def test_a03_a_shared_last_block_is_copied_once_per_branch_but_the_last(bench):
    world = bench()
    parent, _ = world.start(range(6))
    branches = [parent, world.fork(parent), world.fork(parent)]
    assert world.alloc.stats().used == 2
    assert world.alloc.stats().shared == 2
    for number, seq in enumerate(branches):
        world.append(seq, 100 + number)
        world.compute(seq)
    assert world.alloc.stats().num_copies == 2
    assert world.alloc.stats().used == 4
    assert all(world.intact(seq) for seq in branches)
    assert len({world.table(seq)[0] for seq in branches}) == 1  # the full block stays shared
    for seq in branches:
        world.append(seq, 7)
        world.compute(seq)
    assert world.alloc.stats().num_copies == 2  # forked once, copied once


def test_a_fork_on_a_block_end_copies_nothing(bench):
    world = bench()
    parent, _ = world.start(range(8))
    child = world.fork(parent)
    for seq in (parent, child):
        world.append(seq, 5)
        world.compute(seq)
    assert world.alloc.stats().num_copies == 0
    assert world.alloc.stats().used == 4


def test_the_last_of_k_sharers_writes_in_place_even_with_a_full_pool(bench):
    world = bench(num_blocks=3)
    parent, _ = world.start(range(6))
    child = world.fork(parent)
    group = world.group(parent, child)
    for seq in (parent, child):
        world.append(seq, 1)
    scratch = world.scratch([group], [group])
    assert scratch.need_decodes() == scratch.need(group, 2) == 1
    assert scratch.take_decodes()
    rows = world.scratch([group], [group])._decode_rows
    copies = world.alloc.grow_decodes([parent, child], rows)
    assert len(copies) == 1
    assert world.free == 0
    world.alloc.check()


def test_a01_references_are_counted_per_table_and_never_below_zero(bench):
    world = bench()
    parent, _ = world.start(range(6))
    children = [world.fork(parent) for _ in range(4)]
    world.free_seq(parent)
    for child in children:
        world.append(child, 9)
        world.compute(child)
        world.alloc.check()
    for child in children:
        world.free_seq(child)
    world.alloc.check()
    assert world.free == 16
    with pytest.raises(PluginContractError, match="law 1"):
        world.alloc.pool.release(0)


def test_fork_before_free_keeps_blocks_and_never_allocates(bench):
    world = bench(num_blocks=2)
    parent, _ = world.start(range(6))
    assert world.free == 0
    child = world.fork(parent)
    world.free_seq(parent)
    assert world.intact(child)
    assert world.free == 0


def test_shrink_returns_tail_blocks_and_forgets_keys_of_tokens_that_change(bench):
    world = bench()
    seq, _ = world.start(range(10))
    world.rows.num_tokens[seq.row] = world.rows.num_computed[seq.row] = 5
    world.alloc.shrink(seq, 5)
    world.alloc.check()
    assert len(world.table(seq)) == 2
    world.append(seq, 90, 91, 92, 93)
    world.compute(seq)
    world.alloc.check()
    assert world.intact(seq)
    twin, hits = world.start([*range(5), 90, 91, 92, 93])
    assert hits == 8
    assert world.intact(twin)


def test_shrinking_below_what_was_only_looked_up_forgets_its_keys_too(bench):
    world = bench(num_blocks=4, block_size=1)
    other, _ = world.start([9])
    seq = world.seq([1, 0, 0])
    assert world.open(seq) == 0  # its first two blocks are hashed now
    world.alloc.shrink(seq, 0)
    world.rows.num_tokens[seq.row] = 1
    world.append(seq, 1)
    world.compute(seq)
    world.alloc.check()
    assert world.intact(other)


def test_after_a_swap_evicted_content_is_published_again(bench):
    world = bench(num_blocks=4, num_host_blocks=4)
    seq, _ = world.start(range(9))
    group = world.group(seq)
    world.swap(group, "out")
    filler, _ = world.start(range(50, 66))  # overwrites what the device still had cached
    world.free_seq(filler)
    world.swap(group, "in")
    world.alloc.publish(seq)
    world.alloc.check()
    again, hits = world.start(range(9))
    assert hits == 8
    assert world.intact(again)


def test_museum_9_without_a_cache_reuse_is_last_in_first_out(bench):
    world = bench(num_blocks=8, prefix_cache=False)
    seq, _ = world.start(range(12))
    blocks = world.table(seq)
    world.free_seq(seq)
    again, hits = world.start(range(12))
    assert hits == 0
    assert world.table(again) == blocks


def test_with_a_cache_unpublished_blocks_are_reused_first_and_prefixes_last(bench):
    world = bench(num_blocks=6)
    seq, _ = world.start(range(11))  # two full blocks and a partial one
    first, second, partial = world.table(seq)
    world.free_seq(seq)
    order = list(world.alloc.pool.free_list)
    assert order[0] == partial
    assert order[-2:] == [second, first]
    other, _ = world.start(range(50, 70))  # five blocks: evicts the tail of the prompt, not its beginning
    assert world.alloc.stats().num_evictions == 1
    world.free_seq(other)
    assert world.open(world.seq(range(11))) == 4


def test_a_hit_leaves_the_middle_of_the_free_list(bench):
    world = bench(num_blocks=6)
    kept, _ = world.start(range(9))
    world.free_seq(kept)
    other, _ = world.start(range(20, 29))
    world.free_seq(other)
    again, hits = world.start(range(9))
    world.alloc.check()
    assert hits == 8
    assert world.intact(again)


def test_evicting_one_of_two_equal_blocks_keeps_the_live_one_cached(bench):
    world = bench(num_blocks=6)
    first, second = world.seq(range(9)), world.seq(range(9))
    for seq in (first, second):
        world.open(seq)
    for seq in (first, second):
        world.compute(seq)
    world.free_seq(first)
    third, hits = world.start(range(9))
    assert hits == 8
    world.alloc.check()
    for seq in (second, third):
        world.free_seq(seq)
    world.alloc.check()
    assert world.alloc.stats().cached_free == 2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda world, seq: world.alloc.open(seq), "belongs to branch"),
        (lambda world, seq: world.alloc.fork(seq, seq), "belongs to branch"),
        (lambda world, seq: world.alloc.grow(world.seq([1]), 1), "open it first"),
        (lambda world, seq: world.alloc.grow(seq, 0), "law 3"),
        (lambda world, seq: world.alloc.grow(seq, 65), "law 3"),
        (lambda world, seq: world.alloc.publish(world.seq([1])), "open it first"),
        (lambda world, seq: world.alloc.swap_in(world.group(seq)), "no table on the host"),
        (lambda world, seq: world.alloc.swap_out(world.group(world.seq([1]))), "no table on the device"),
        (lambda world, seq: world.scratch().give_back(world.group(seq, state=GroupState.WAITING)), "law 7"),
        (lambda world, seq: world.scratch().take(world.group(seq), 5), "gap rule"),
    ],
)
def test_wrong_use_is_named_and_changes_nothing(bench, act, message):
    world = bench(num_host_blocks=4)
    seq, _ = world.start(range(6))
    before = world.alloc.stats()
    with pytest.raises(PluginContractError, match=message):
        act(world, seq)
    assert world.alloc.stats() == before
    world.alloc.check()


@pytest.mark.parametrize(
    ("damage", "law"),
    [
        (lambda a: a.pool.refs.__setitem__(0, 7), "law 1"),
        (lambda a: a.pool.free_list.push_back(0), "law 2"),
        (lambda a: a.pool.free_list._prev.__setitem__(5, 0), "law 2"),
        (lambda a: a.pool.free_list.pop_front(), "law 2"),
        (lambda a: a.ends.__setitem__(0, 30), "laws 3 and 5"),
        (lambda a: a.hit_tokens.__setitem__(0, 60), "law 13"),
        (lambda a: a.pool.frozen.__setitem__(5, True), "law 4"),
        (lambda a: a.pool.cached.clear(), "law 14"),
        (lambda a: a.pool.following.clear(), "law 14"),
        (lambda a: a.sources.__setitem__(0, [9]), "law 1"),
        (lambda a: a._rows.tokens.__setitem__((0, 1), 77), "law 14"),
        (lambda a: a._rows.num_computed.__setitem__(0, 2), "law 4"),
        (lambda a: a.host.free.pop(), "law 2"),
        (lambda a: a.host.refs.__setitem__(1, 1), "law 1"),
    ],
)
def test_check_names_the_law_that_was_broken(bench, damage, law):
    world = bench(num_host_blocks=4)
    seq, _ = world.start(range(6))
    assert seq.row == 0
    world.alloc.check()
    damage(world.alloc)
    with pytest.raises(PluginContractError, match=law):
        world.alloc.check()


def test_museum_26_shared_blocks_swap_out_and_in_a_hundred_times(bench):
    world = bench(num_blocks=12, num_host_blocks=12)
    parent, _ = world.start(range(7))
    branches = [parent, *(world.fork(parent) for _ in range(3))]
    for number, seq in enumerate(branches):
        world.append(seq, 50 + number)
        world.compute(seq)
    group = world.group(*branches)
    distinct = len({block for seq in branches for block in world.table(seq)})
    used = world.alloc.stats().used
    for _ in range(100):
        out = world.swap(group, "out")
        assert len(out) == len({src for src, _ in out}) == distinct  # a shared block moves once
        assert world.free == 12
        assert all(world.table(seq) == [] for seq in branches)  # the table is replaced
        world.alloc.check()
        world.memory[:] = -1
        assert world.swap(group, "in") is not None
        world.alloc.check()
        assert world.alloc.stats().used == used
        assert world.alloc.stats().host_free == 12
        assert all(world.intact(seq) for seq in branches)
    for seq in branches:
        world.free_seq(seq)
    world.alloc.check()
    assert world.free == 12


def test_museum_25_swapping_without_host_room_answers_none_and_changes_nothing(bench):
    world = bench(num_host_blocks=1)
    seq, _ = world.start(range(6))
    before = world.alloc.stats()
    assert world.alloc.swap_out(world.group(seq)) is None
    assert world.alloc.stats() == before
    assert world.intact(seq)


def test_swapping_in_without_device_room_answers_none(bench):
    world = bench(num_blocks=3, num_host_blocks=3)
    seq, _ = world.start(range(8))
    group = world.group(seq)
    world.swap(group, "out")
    world.start(range(30, 38))
    assert world.alloc.swap_in(group) is None
    world.alloc.check()


def test_a_swapped_sequence_can_be_freed_where_it_is(bench):
    world = bench(num_host_blocks=4)
    seq, _ = world.start(range(6))
    world.swap(world.group(seq), "out")
    world.free_seq(seq)
    world.alloc.check()
    assert world.alloc.stats().host_free == 4


def test_a_branch_restored_inside_a_published_block_never_writes_it(bench):
    """A recomputed branch that left its parent at position 6 shares the parent's full, published second block."""
    world = bench()
    parent, _ = world.start(range(9))
    child = world.seq([*range(6), 70, 71])
    child.parent, child.divergence = parent, 6
    world.rows.num_computed[child.row] = 6
    world.alloc.fork(parent, child)
    world.compute(child)
    world.alloc.check()
    assert world.intact(parent)
    assert world.intact(child)
    assert world.alloc.stats().num_copies == 1


def test_a_published_block_whose_other_users_left_is_copied_before_it_is_written(bench):
    world = bench()
    parent, _ = world.start(range(9))
    child = world.seq([*range(6), 70, 71])
    world.rows.num_computed[child.row] = 6
    world.alloc.fork(parent, child)
    world.free_seq(parent)
    world.compute(child)
    world.alloc.check()
    assert world.intact(child)
    assert world.alloc.stats().num_copies == 1
    again, hits = world.start(range(9))
    assert hits == 8
    assert world.intact(again)


def test_the_host_keeps_its_own_state_apart(bench):
    world = bench(num_host_blocks=4)
    seq, _ = world.start(range(6))
    group = world.group(seq)
    world.swap(group, "out")
    assert group.residency is Residency.HOST
    with pytest.raises(PluginContractError, match="on the host"):
        world.alloc.grow(seq, 1)
