"""The radix tree: runs and splits, locked paths, and the order of eviction."""

from __future__ import annotations

import random
from itertools import takewhile

import pytest

from paged_core.errors import PluginContractError

HEAD = list(range(8))  # two blocks
LEFT, RIGHT = list(range(20, 28)), list(range(40, 48))


def equal_blocks(one, other):
    """Tokens in the full blocks with which both begin, without the last token of `other`."""
    pairs = zip(one.token_ids.tolist(), other.token_ids.tolist()[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // 4 * 4


def test_a_prompt_is_one_run_and_goes_on_in_it(bench):
    world = bench()
    seq, _ = world.start([*HEAD, *LEFT])
    assert world.runs() == [(0, 4)]
    _, hits = world.start([*HEAD, *LEFT, *RIGHT, 1])
    assert hits == 16
    assert world.runs() == [(0, 6)]
    assert world.cached([*HEAD, *LEFT, *RIGHT]) == 24
    world.free(seq)


def test_a_divergence_splits_the_run_and_hits_go_deeper_on_both_sides(bench):
    world = bench()
    world.start([*HEAD, *LEFT])
    _, hits = world.start([*HEAD, *RIGHT])
    assert hits == 8
    assert world.runs() == [(0, 2), (2, 2), (2, 2)]
    assert world.cached([*HEAD, *LEFT]) == world.cached([*HEAD, *RIGHT]) == 16
    _, hits = world.start([*HEAD, *LEFT, 1])
    assert hits == 16


def test_a_split_inside_a_block_copies_it_and_leaves_the_old_rest_to_age_on_its_own(bench):
    world = bench()
    world.start([*HEAD, *LEFT])
    _, hits = world.start([*HEAD[:6], *RIGHT])
    assert hits == 6
    assert world.runs() == [(0, 1), (1, 1), (1, 2), (2, 2)]


def test_the_closest_of_the_children_is_found_at_a_root_and_behind_a_run(bench):
    world = bench(num_blocks=32)
    for tail in ([50, 51, 52, 53], [50, 51, 60, 61], [70, 71, 72, 73]):
        world.free(world.start([*HEAD, *tail])[0])
        world.free(world.start(tail)[0])
    for start in (HEAD, []):
        num = len(start)
        found = [world.open(world.seq([*start, *tokens, 9])) - num for tokens in ([50, 51, 60, 9], [50, 9], [70], [9])]
        assert found == [3, 1, 1, 0]
    world.alloc.check()


def test_salts_have_trees_of_their_own_and_an_empty_tree_is_dropped(bench):
    world = bench(num_blocks=4)
    seq, _ = world.start([*HEAD, 1], salt="a")
    other = world.seq([*HEAD, 1], salt="b")
    assert world.open(other) == 0
    world.free(seq, other)
    assert set(world.tree.roots) == {(None, "a")}
    world.start(range(50, 66))
    assert set(world.tree.roots) == {(None, None)}


def test_eviction_takes_leaves_before_what_they_share_however_recently_they_were_used(bench):
    world = bench(num_blocks=8)
    left, _ = world.start([*HEAD, *LEFT])
    right, _ = world.start([*HEAD, *RIGHT])
    world.free(left, right)  # head 2 blocks, left 2, right 2, plain 2
    filler, _ = world.start(range(100, 112))  # three: one is evicted
    assert world.cached([*HEAD, *LEFT]) == 12  # the end of the older leaf
    assert world.cached([*HEAD, *RIGHT]) == 16
    more, _ = world.start(range(200, 208))  # two more: the rest of the older leaf, then the younger one's end
    assert world.cached([*HEAD, *LEFT]) == 8
    assert world.cached([*HEAD, *RIGHT]) == 12
    last, _ = world.start(range(300, 308))  # two more: right's first block, then the head, which is a leaf by now
    assert world.cached([*HEAD, *RIGHT]) == 4
    assert world.alloc.stats().num_evictions == 5
    world.free(filler, more, last)


def test_a_leaf_used_again_outlives_one_that_was_not(bench):
    world = bench(num_blocks=5)
    one, _ = world.start(LEFT)
    two, _ = world.start(RIGHT)
    world.free(one, two)
    again = world.seq([*LEFT, 1])
    assert world.open(again) == 8
    world.free(again)
    world.start([1] * 8)
    assert world.cached(LEFT) == 8
    assert world.cached(RIGHT) == 4


def test_the_unused_rest_of_a_run_ages_on_its_own(bench):
    world = bench(num_blocks=8)
    long, _ = world.start([*HEAD, *LEFT])
    other, _ = world.start(RIGHT)
    world.free(long, other)
    short = world.seq([*HEAD, 99])
    assert world.open(short) == 8
    world.free(short)
    world.start(range(100, 116))  # four blocks: two plain, two evicted
    assert world.cached([*HEAD, *LEFT]) == 8  # its tail was older than RIGHT
    assert world.cached(RIGHT) == 8


def test_the_path_of_a_live_sequence_cannot_be_evicted(bench):
    world = bench(num_blocks=6)
    seq, _ = world.start([*HEAD, *LEFT])
    assert world.alloc.stats().free == 2
    newcomer = world.seq(range(100, 112))
    world.open(newcomer)
    assert not world.compute(newcomer)
    assert world.cached([*HEAD, *LEFT]) == 16
    world.free(seq)
    assert world.compute(newcomer)
    assert world.alloc.stats().num_evictions == 1
    assert world.cached([*HEAD, *LEFT]) == 12


def test_a_hit_locks_its_path_and_leaves_the_rest_to_be_evicted(bench):
    world = bench(num_blocks=4)
    seq, _ = world.start([*HEAD, *LEFT])
    world.free(seq)
    holder = world.seq([*HEAD, 99])
    assert world.open(holder) == 8
    other = world.seq(range(100, 112))
    world.open(other)
    assert not world.compute(other)
    assert world.compute(holder)
    assert world.cached([*HEAD, *LEFT]) == 12


def test_twins_that_leave_in_turn_leave_no_hole_in_a_locked_path(bench):
    """The second keeps what it computed itself when the first goes, so the start of its path stays locked."""
    world = bench(num_blocks=8)
    twins = [world.seq([*HEAD, 1]), world.seq([*HEAD, 1])]
    for seq in twins:
        world.open(seq)
    assert all(world.compute(seq) for seq in twins)
    world.free(twins[0])
    assert world.alloc.stats().cached_free == 0
    world.start(range(100, 120))  # all five free blocks
    assert world.cached(HEAD) == 8
    assert world.alloc.stats().num_evictions == 0


def test_check_finds_a_hole_in_a_locked_path(bench):
    world = bench()
    world.start([*HEAD, *LEFT])
    pool = world.alloc.pool
    node = next(node for _, node in world.tree.nodes())
    block, node.holders[0] = node.holders[0][0], [15]
    pool.frozen[block], pool.frozen[15] = False, True
    world.tree.node_of[block], world.tree.node_of[15], world.tree.depth[15] = None, node, 0
    pool.plain.remove(15)
    pool.num_cached_free += 1
    with pytest.raises(PluginContractError, match="locked, what comes before them is not"):
        world.alloc.check()


def test_the_queue_of_leaves_does_not_grow_without_eviction(bench):
    world = bench()
    for _ in range(500):
        seq, _ = world.start([*HEAD, 1])
        world.free(seq)
    assert len(world.tree._queue) <= 64 + 2 * 16 + 1


@pytest.mark.parametrize("seed", range(20))
def test_random_prompts_that_share_and_leave_in_any_order_keep_the_laws(bench, seed):
    """Every law after every call; what a live sequence holds is always hit; nothing is left at the end."""
    draw = random.Random(seed)
    world = bench(num_blocks=10)
    live = []
    for _ in range(150):
        if live and draw.random() < 0.5:
            world.free(live.pop(draw.randrange(len(live))))
            continue
        if not world.free_rows:
            continue
        seq = world.seq([draw.randrange(2) // (1 + i % 3) for i in range(draw.randrange(1, 30))])
        hits = world.open(seq)
        shared = [equal_blocks(other, seq) for other in live]
        assert max(shared, default=0) <= hits < seq.num_tokens
        if world.compute(seq):
            live.append(seq)
        else:
            world.free(seq)
    world.free(*live)
    assert world.alloc.stats().free == 10
    assert world.alloc.stats().num_evictions > 0
