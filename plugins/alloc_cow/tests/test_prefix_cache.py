"""The prefix cache: what may be hit, and by whom."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paged_alloc_cow import allocator, prefix


def test_museum_13_a_warm_prompt_reads_the_same_memory_as_a_cold_one(bench):
    world = bench()
    first, cold = world.start(range(11))
    second, warm = world.start(range(11))
    assert (cold, warm) == (0, 8)
    assert world.table(first)[:2] == world.table(second)[:2]
    assert world.intact(first)
    assert world.intact(second)
    stats = world.alloc.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (22, 8)


def test_museum_13_with_the_cache_off_nothing_is_hit_or_published(bench):
    world = bench(prefix_cache=False)
    world.start(range(11))
    _, hits = world.start(range(11))
    assert hits == 0
    assert world.alloc.pool.cached == {}


@pytest.mark.parametrize("length", range(1, 14))
def test_law_13_at_least_one_token_is_computed(bench, length):
    world = bench()
    world.start(range(20))
    _, hits = world.start(range(length))
    assert hits == length - 1


def test_a10_a_full_prompt_hit_copies_its_last_block_and_later_hits_go_deeper(bench):
    world = bench()
    _, first = world.start(range(8))
    _, second = world.start(range(8))
    _, third = world.start(range(12))
    _, fourth = world.start(range(13))
    assert (first, second, third, fourth) == (0, 7, 8, 12)
    assert world.alloc.stats().num_copies == 1
    world.alloc.check()


def test_a12_blocks_that_were_never_written_are_never_hit(bench):
    world = bench()
    dropped = world.seq(range(16))
    world.open(dropped)
    assert world.alloc.grow(dropped, 16) == []
    world.free_seq(dropped)  # aborted between allocation and forward pass
    assert world.open(world.seq(range(16))) == 0


def test_museum_12_two_equal_prompts_in_one_step_hit_nothing_of_each_other(bench):
    world = bench()
    twins = [world.seq(range(9)), world.seq(range(9))]
    assert [world.open(seq) for seq in twins] == [0, 0]
    assert [world.alloc.grow(seq, 9) for seq in twins] == [[], []]
    world.alloc.publish(twins[0])  # nothing is computed yet: publishing is empty
    assert world.open(world.seq(range(9))) == 0
    for seq in twins:
        world.write(seq, 0, 9)
    world.alloc.check()
    assert all(world.intact(seq) for seq in twins)


def test_the_walk_stops_at_the_first_miss(bench):
    world = bench(num_blocks=5)
    seq, _ = world.start(range(13))
    blocks = world.table(seq)
    world.free_seq(seq)
    world.alloc.pool.unpublish(blocks[1])
    world.alloc.pool.num_cached_free -= 1
    assert world.open(world.seq(range(13))) == 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a14_an_adapter_is_never_taken_for_a_salt(bench, order):
    world = bench()
    tenants = [{"adapter": "k1"}, {"salt": "k1"}]
    assert [world.start(range(8), **tenants[i])[1] for i in order] == [0, 0]
    assert world.start(range(8), **tenants[0])[1] == 7


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"adapter": "a", "salt": "b"}, {"adapter": "ab"}),
        ({"adapter": "a", "salt": "b"}, {"adapter": "b", "salt": "a"}),
        ({"salt": ""}, {}),
        ({"adapter": ""}, {}),
        ({"adapter": "-salt"}, {"salt": "-salt"}),
        ({"salt": "\ud83d"}, {"salt": "?"}),
    ],
)
def test_a14_fields_cannot_be_shifted_into_each_other(bench, one, other):
    world = bench()
    assert world.start(range(8), **one)[1] == 0
    assert world.start(range(8), **other)[1] == 0
    assert world.start(range(8), **one)[1] == 7


def test_a17_tenants_with_different_salts_share_nothing(bench):
    world = bench(num_blocks=32)
    hits = [world.start(range(16), salt=salt)[1] for salt in ("s1", "s2", None, "s1")]
    assert hits == [0, 0, 0, 15]


def test_a18_a_prefix_that_ends_inside_a_block_is_hit_to_its_end_and_no_further(bench):
    world = bench(num_blocks=24)
    shared = list(range(10))
    a, _ = world.start([*shared, *range(50, 58)])
    b, hits = world.start([*shared, *range(70, 73)])
    assert hits == 10
    again, rerun = world.start([*shared, *range(50, 58)])
    assert rerun == 16
    assert all(world.intact(seq) for seq in (a, b, again))


def test_museum_10_the_same_tokens_at_another_place_are_no_hit(bench):
    world = bench()
    world.start([1, 2, 3, 4, 5, 6, 7, 8])
    assert world.start([5, 6, 7, 8, 1, 2, 3, 4])[1] == 0
    assert world.start([9, 9, 9, 9, 5, 6, 7, 8, 0])[1] == 0


def test_a_cold_sequence_hits_nothing_but_publishes(bench):
    world = bench()
    assert world.start(range(9), cold=True)[1] == 0
    assert world.start(range(9), cold=True)[1] == 0
    assert world.start(range(9))[1] == 8


def test_a_hash_collision_is_a_miss(bench, monkeypatch):
    for module in (prefix, allocator):
        monkeypatch.setattr(module, "digest_of", lambda parent, tokens: b"same")
    world = bench()
    world.start(range(9))
    assert world.start(range(50, 59))[1] == 0
    assert world.start(range(9))[1] == 8


def test_output_tokens_are_published_as_their_blocks_fill(bench):
    world = bench()
    seq, _ = world.start(range(6))
    for token in range(30, 36):
        world.append(seq, token)
        world.compute(seq)
    assert world.start([*range(6), *range(30, 36), 0])[1] == 12


def test_a_branch_publishes_what_it_alone_computed(bench):
    world = bench()
    parent, _ = world.start(range(6))
    child = world.fork(parent)
    for seq, tokens in ((parent, (60, 61)), (child, (70, 71))):
        for token in tokens:
            world.append(seq, token)
            world.compute(seq)
    assert world.start([*range(6), 60, 61, 1])[1] == 8
    assert world.start([*range(6), 70, 71, 1])[1] == 8
    world.alloc.check()


def test_a_blocked_head_of_queue_is_hashed_once(bench, monkeypatch):
    calls = []
    real = prefix.digest_of
    monkeypatch.setattr(prefix, "digest_of", lambda *args: calls.append(1) or real(*args))
    world = bench()
    world.start(range(9))
    waiting = world.seq(range(17))
    calls.clear()
    for _ in range(5):
        assert len(world.alloc.find_blocks(waiting, 4)) == 2
    assert len(calls) == 4


@pytest.mark.parametrize(("block_size", "shared", "hits"), [(16, 1, 1), (32, 1, 0), (32, 2, 2), (64, 3, 0), (64, 4, 4)])
def test_a_beginning_that_is_too_small_a_part_of_its_block_is_not_copied(bench, block_size, shared, hits):
    world = bench(block_size=block_size, max_len=256)
    world.start(range(block_size))
    assert world.start([*range(shared), *range(900, 900 + block_size)])[1] == hits


def test_the_order_of_siblings_follows_what_is_cached(bench):
    world = bench(num_blocks=8)
    for tail in (30, 10, 20):
        world.free_seq(world.start([1, 2, 3, 4, tail, 5, 6, 7])[0])
    orders = [len(siblings.ordered) for siblings in world.alloc.pool.following.values()]
    assert sorted(orders) == [1, 3]
    filler, _ = world.start(range(50, 82))  # all eight blocks
    assert len(world.alloc.pool.following) == 8
    world.free_seq(filler)
    world.alloc.check()


def test_chains_die_with_their_sequence(bench):
    world = bench()
    seq, _ = world.start(range(9))
    world.free_seq(seq)
    assert len(world.alloc.keys._chains) == 1
    del seq
    assert len(world.alloc.keys._chains) == 0


PROGRAM = """
import sys
from paged_alloc_cow.prefix import PrefixKeys
seed = None if sys.argv[1] == "none" else int(sys.argv[1])
print(PrefixKeys(4, seed).root("lora", "tenant").hex())
"""


def _root_in_another_process(seed):
    command = [sys.executable, "-c", PROGRAM, str(seed).lower()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_museum_11_keys_are_equal_across_processes_only_with_a_fixed_seed():
    assert _root_in_another_process(7) == _root_in_another_process(7)
    assert _root_in_another_process(7) != _root_in_another_process(8)
    assert _root_in_another_process(None) != _root_in_another_process(None)
