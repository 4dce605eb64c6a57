"""Prefix cache: what may be hit, by whom, and how long it stays (laws 4, 13, 14)."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.allocator_shape import PLAIN, Origin, Shape
from paged_conformance.oracles.allocator_world import World

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("behaviour")


@requires("prefix_cache")
def test_a_second_equal_prompt_reads_the_first_ones_blocks(alloc: Candidate) -> None:
    world = World(alloc)
    first, cold = world.start(range(2 * world.size + 3))
    second, warm = world.start(range(2 * world.size + 3))
    full = (2 * world.size + 2) // world.size
    assert (cold, warm) == (0, full * world.size), "law 13: every full block before the last token is a hit"
    assert world.model.tables[first][:full] == world.model.tables[second][:full]
    world.drain()


@requires("prefix_cache")
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_at_least_one_token_is_always_computed(alloc: Candidate, num_blocks: int, offset: int) -> None:
    """Law 13 and A10: a full-prompt hit drops its last block, or copies it, and never shares what it will write."""
    world = World(alloc)
    world.start(range(5 * world.size))
    length = max(1, num_blocks * world.size + offset)
    _, hits = world.start(range(length))
    assert world.lawful(hits, length - 1), f"law 13: a prompt of {length} tokens, all cached, hit {hits}"
    world.drain()


@requires("prefix_cache")
def test_blocks_that_were_never_written_are_never_hit(alloc: Candidate) -> None:
    """A12: a request that leaves between allocation and forward pass leaves nothing to hit."""
    world = World(alloc)
    dropped = world.seq(range(3 * world.size))
    world.open(dropped)
    assert world.grow(dropped, dropped.gap)
    assert world.open(world.seq(range(3 * world.size))) == 0, "law 4: a block was hit before it was written"
    world.free_seq(dropped)
    assert world.open(world.seq(range(3 * world.size))) == 0, "law 4: a block was hit that was never written"
    world.drain()


@requires("prefix_cache")
def test_two_equal_prompts_in_one_step_hit_nothing_of_each_other(alloc: Candidate) -> None:
    world = World(alloc)
    twins = [world.seq(range(2 * world.size + 1)) for _ in range(2)]
    assert [world.open(seq) for seq in twins] == [0, 0]
    assert all(world.grow(seq, seq.gap) for seq in twins)
    world.alloc.publish(twins[0])  # nothing is computed yet, so nothing is entered
    assert world.open(world.seq(range(2 * world.size + 1))) == 0
    for seq in twins:
        world.write(seq, seq.gap)
    world.drain()


@requires("prefix_cache")
def test_tenants_with_different_salts_share_nothing(alloc: Candidate) -> None:
    """Law 14, A17."""
    world = World(alloc, Shape(num_blocks=32))
    prompt = range(3 * world.size + 1)
    hits = [world.start(prompt, Origin(salt=salt))[1] for salt in ("s1", "s2", None, "s1")]
    assert hits == [0, 0, 0, 3 * world.size], f"law 14: salts s1, s2, none, s1 hit {hits} tokens"
    world.drain()


@requires("prefix_cache")
def test_adapters_share_nothing(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=32))
    prompt = range(3 * world.size + 1)
    hits = [world.start(prompt, Origin(adapter=adapter))[1] for adapter in ("a1", "a2", None, "a1")]
    assert hits == [0, 0, 0, 3 * world.size], f"law 14: adapters a1, a2, none, a1 hit {hits} tokens"
    world.drain()


@requires("prefix_cache")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Origin(adapter="k"), Origin(salt="k")),
        (Origin(adapter="a", salt="b"), Origin(adapter="ab")),
        (Origin(adapter="a", salt="b"), Origin(adapter="b", salt="a")),
        (Origin(salt=""), PLAIN),
        (Origin(adapter=""), PLAIN),
        (Origin(salt="\ud83d"), Origin(salt="?")),
    ],
)
def test_an_adapter_is_never_taken_for_a_salt(alloc: Candidate, one: Origin, other: Origin) -> None:
    """Law 14, A14: fields cannot be shifted into each other."""
    world = World(alloc)
    prompt = range(2 * world.size + 1)
    hits = [world.start(prompt, origin)[1] for origin in (one, other, one)]
    assert hits == [0, 0, 2 * world.size], f"law 14: {one}, {other} and {one} again hit {hits} tokens"
    world.drain()


@requires("prefix_cache")
def test_the_same_tokens_after_another_past_are_no_hit(alloc: Candidate) -> None:
    """Law 14: keys chain over everything before the block."""
    world = World(alloc, Shape(num_blocks=32))
    one, two = list(range(world.size)), list(range(500, 500 + world.size))
    world.start([*one, *two, 9])
    for prompt in ([*two, *one, 9], [*two, *two, 9], [*range(900, 900 + world.size), *two, 9]):
        _, hits = world.start(prompt)
        assert hits == 0 or prompt[:hits] == prompt[: world.size] == two, f"law 14: {hits} tokens hit out of place"
    _, hits = world.start([*one, *two, 9])
    assert hits == 2 * world.size
    world.drain()


@requires("prefix_cache")
def test_a_prefix_that_ends_inside_a_block_is_not_hit_beyond_its_end(alloc: Candidate) -> None:
    """A18: what follows it in that block is another's."""
    world = World(alloc, Shape(num_blocks=24))
    shared = list(range(3 * world.size - 1))
    world.start([*shared, *range(500, 500 + world.size)])
    _, hits = world.start([*shared, *range(700, 703)])
    assert world.lawful(hits, len(shared)), f"{hits} tokens hit where {len(shared)} are shared"
    world.drain()


@requires("prefix_cache")
def test_a_cold_sequence_hits_nothing_but_publishes(alloc: Candidate) -> None:
    world = World(alloc)
    prompt = range(2 * world.size + 1)
    hits = [world.start(prompt, origin)[1] for origin in (Origin(cold=True), Origin(cold=True), PLAIN)]
    assert hits == [0, 0, 2 * world.size]
    world.drain()


@requires("prefix_cache")
def test_output_tokens_are_published_as_their_blocks_fill(alloc: Candidate) -> None:
    world = World(alloc)
    seq, _ = world.start(range(world.size + 1))
    output = list(range(500, 500 + 2 * world.size))
    for token in output:
        world.append(seq, token)
        assert world.compute(seq)
    _, hits = world.start([*range(world.size + 1), *output])
    assert hits == 3 * world.size
    world.drain()


@requires("prefix_cache", "fork")
def test_each_branch_publishes_what_it_alone_computed(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=24))
    parent, _ = world.start(range(world.size + 1))
    tails = ([*range(500, 500 + world.size)], [*range(700, 700 + world.size)])
    for seq, tail in zip((parent, world.fork(parent)), tails, strict=True):
        for token in tail:
            world.append(seq, token)
            assert world.compute(seq)
    for tail in tails:
        _, hits = world.start([*range(world.size + 1), *tail])
        assert hits == 2 * world.size, f"law 14: the branch that went on with {tail} is hit for {hits} tokens"
    world.drain()


@requires("prefix_cache")
def test_a_freed_prompt_stays_a_hit_and_is_lost_from_its_tail(alloc: Candidate) -> None:
    """Tables are freed tail first: eviction takes the end of a prompt before its beginning."""
    world = World(alloc, Shape(num_blocks=5))
    prompt = range(3 * world.size + 1)
    seq, _ = world.start(prompt)
    world.free_seq(seq)
    again, hits = world.start(prompt)
    assert hits == 3 * world.size, "the blocks of a sequence that left are cached while nobody needs them"
    world.free_seq(again)
    filler, _ = world.start(range(900, 900 + 3 * world.size))
    world.free_seq(filler)
    hits = world.open(world.seq(prompt))
    assert 0 < hits < 3 * world.size, f"{hits} tokens hit after one of three blocks had to go"
    assert world.alloc.stats().num_evictions >= 1
    world.drain()


@requires("prefix_cache")
def test_a_hit_that_was_opened_is_not_evicted_by_those_who_grow(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=5))
    seq, _ = world.start(range(3 * world.size + 1))
    world.free_seq(seq)
    newcomer = world.seq(range(3 * world.size + 1))
    assert world.open(newcomer) == 3 * world.size
    greedy = world.seq(range(900, 900 + 3 * world.size))
    world.open(greedy)
    assert not world.grow(greedy, greedy.gap), "law 1: opened hits were handed out again"
    assert world.compute(greedy, world.size) or not world.exact
    assert world.compute(newcomer) or not world.exact
    world.drain()


@requires("prefix_cache")
def test_an_evicted_block_is_no_hit_any_more(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=4))
    seq, _ = world.start(range(3 * world.size + 1))
    world.free_seq(seq)
    filler, _ = world.start(range(900, 900 + 4 * world.size))
    world.free_seq(filler)
    assert world.open(world.seq(range(3 * world.size + 1))) == 0, "law 4: overwritten content was hit"
    world.drain()


@requires("prefix_cache")
def test_equal_content_computed_twice_survives_the_eviction_of_one_copy(alloc: Candidate) -> None:
    world = World(alloc, Shape(num_blocks=6))
    twins = [world.seq(range(2 * world.size + 1)) for _ in range(2)]
    for seq in twins:
        world.open(seq)
    for seq in twins:
        assert world.compute(seq)
    world.free_seq(twins[0])
    _, hits = world.start(range(2 * world.size + 1))
    assert hits == 2 * world.size
    world.drain()


@requires("prefix_cache", "fork")
def test_a_published_block_is_not_written_while_it_can_be_hit(alloc: Candidate) -> None:
    """Law 4: a branch restored inside a published block writes there; whoever knew it must not read the new content."""
    world = World(alloc)
    parent, _ = world.start(range(2 * world.size + 1))
    child = world.fork(parent, 2 * world.size - 1)
    world.free_seq(parent)
    world.append(child, 700)
    assert world.compute(child)
    hits = world.open(world.seq(range(2 * world.size + 1)))  # which also looks whether it reads its own past
    assert hits in (world.size, 2 * world.size), "law 4: what the branch shares is a hit, its own block is none"
    world.drain()


@requires("prefix_cache")
def test_without_the_prefix_cache_nothing_is_hit(alloc: Candidate) -> None:
    world = World(alloc, Shape(prefix_cache=False))
    for _ in range(2):
        seq, hits = world.start(range(2 * world.size + 1))
        assert hits == 0
    world.free_seq(seq)
    assert world.alloc.stats().cached_free == 0
    world.drain()


@requires("prefix_cache")
def test_hits_are_counted_in_tokens(alloc: Candidate) -> None:
    world = World(alloc)
    for _ in range(2):
        world.start(range(2 * world.size + 1))
    stats = world.alloc.stats()
    assert stats.prefix_hits == 2 * world.size
    assert stats.prefix_queries >= stats.prefix_hits


# -- law 14: the root of the hash chain -------------------------------------------------------------------------------


def _digests(alloc: Candidate, seed: int | None) -> set[str]:
    """Digest-like values in the allocator's state after one published prompt, in a process of its own."""
    source = alloc.record.source
    command = [
        sys.executable,
        "-m",
        "paged_conformance.oracles.allocator_keys",
        alloc.name,
        "none" if seed is None else str(seed),
        *([] if source.owners else [source.value]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"law 14 could not be judged: {done.stderr}"
    return set(done.stdout.split())


@requires("prefix_cache")
def test_hash_keys_differ_between_processes_unless_a_seed_is_set(alloc: Candidate) -> None:
    """Law 14: nobody outside can construct two prompts with one key; with one seed, keys are reproducible."""
    unseeded = _digests(alloc, None)
    if unseeded:  # keys that compare tokens and hash nothing have no root to guess
        assert unseeded != _digests(alloc, None), "law 14: two processes without a seed have the same hash keys"
    assert _digests(alloc, 7) == _digests(alloc, 7), "law 14: two processes with one seed have different hash keys"
    if unseeded:
        assert _digests(alloc, 7) != _digests(alloc, 8), "law 14: the seed does not enter the hash keys"
