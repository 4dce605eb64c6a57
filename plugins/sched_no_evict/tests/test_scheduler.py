"""NoEvictScheduler: nobody is ever preempted, and what a cache holds counts only while somebody uses it."""

from __future__ import annotations

import random

import pytest
from paged_conformance.benches.traffic import Ask, play, random_asks
from paged_sched_no_evict import NoEvictProvider

from paged_core.api.params import SamplingParams
from paged_core.api.scheduler import SchedulerNeed
from paged_core.testing.build import EngineShape, build_engine, default_plugins
from paged_core.testing.shadow import ShadowExecutor


def serve(asks, sched="sched_no_evict", **sizes):
    done = play(default_plugins(), EngineShape(**{"sched": sched, "num_blocks": 24, **sizes}), asks)
    done.assert_sound()
    assert not done.recorder.breaches
    return done


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
def test_random_traffic_on_a_small_pool_preempts_nobody(alloc, cache):
    asks = random_asks(5, 600, 0.3)
    done = serve(asks, alloc=alloc, prefix_cache=cache, token_budget=16)
    assert sum(done.preemptions.values()) == 0
    assert len(done.tokens) == len(asks)
    fcfs = serve(asks, "sched_fcfs", alloc=alloc, prefix_cache=cache, token_budget=16)
    assert sum(fcfs.preemptions.values()) > 20, "the pool was meant to be small"


KINDS = (
    {"temperature": 0},
    {"n": 3, "temperature": 1},
    {"n": 2, "best_of": 4, "temperature": 1},
    {"use_beam_search": True, "beam_width": 3, "n": 2, "temperature": 0},
)


@pytest.mark.parametrize("seed", range(6))
def test_branches_and_beams_are_counted_to_their_ends_too(seed):
    draw = random.Random(seed)
    shape = EngineShape(sched="sched_no_evict", num_blocks=draw.randrange(36, 60), max_num_seqs=12, token_budget=24)
    engine = build_engine(ShadowExecutor(shape.block_size), shape)
    for i in range(24):
        params = SamplingParams(max_tokens=draw.randrange(1, 24), ignore_eos=True, **draw.choice(KINDS))
        prompt = [97 + draw.randrange(3)] * draw.randrange(0, 12) + [110 + i] * draw.randrange(1, 12)
        engine.add_request(str(i), prompt, params)
        for _ in range(draw.randrange(6)):
            engine.step()
    while engine.has_unfinished:
        engine.step()
    engine.check()
    assert engine.stats().preemptions == {"swap": 0, "recompute": 0}


def test_an_end_before_the_announced_one_makes_room_at_once():
    """Pool for two of eight blocks each; one of them is given up before step 3."""
    asks = [Ask(name, (1 + i,) * 8, 24) for i, name in enumerate("abc")]
    shape = EngineShape(sched="sched_no_evict", num_blocks=16, prefix_cache=False)
    for aborts, enters_at in (({}, 24), ({3: ["a"]}, 3)):
        done = play(default_plugins(), shape, asks, aborts=aborts)
        done.assert_sound()
        assert entered(done) == {"a": 0, "b": 0, "c": enters_at}


@pytest.mark.parametrize(
    ("owner_tokens", "num_blocks", "enters"), [(20, 17, True), (20, 16, False), (1, 12, True), (1, 11, False)]
)
def test_a_cached_beginning_is_discounted_only_while_somebody_uses_it(owner_tokens, num_blocks, enters):
    """The beginning is four blocks; `other` takes five of its own, the newcomer three more; `owner` 9, or has ended."""
    head = tuple(range(60, 76))
    asks = [Ask("owner", (*head, 1), owner_tokens), Ask("other", (7,) * 17, 4), Ask("new", (*head, 2), 12, at=2)]
    done = serve(asks, num_blocks=num_blocks)
    assert (entered(done)["new"] == 2) is enters
    assert sum(done.preemptions.values()) == 0


def entered(done):
    """Request -> the step at which it was admitted."""
    return {group: note.step for note in done.recorder.notes for group in note.admitted}


def test_it_has_no_settings_and_fits_any_limits():
    assert NoEvictProvider().probe(SchedulerNeed(1, 1, 64, 4, 0)).ok
    assert not NoEvictProvider().probe(SchedulerNeed(0, 1, 64, 4, 0)).ok
    assert NoEvictProvider.Settings.model_fields == {}
