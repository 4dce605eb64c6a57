"""Preemption end to end over the shadow executor: tokens do not show that a request was ever away (law 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.benches.traffic import (
    Ask,
    Play,
    play,
    random_aborts,
    random_asks,
    shape_for,
    submit,
    undisturbed,
)
from paged_conformance.marks import layer
from paged_core.testing.build import build_engine
from paged_core.testing.seams import PreemptNow
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_conformance.candidate import Candidate
    from paged_core.api.request import Group
    from paged_core.api.scheduler import Decision, Scheduler, View

pytestmark = layer("engine")

VICTIM = Ask("victim", tuple(range(1, 20)), 14)
MATE = Ask("mate", tuple(range(1, 12)), 14)
HOST_ROOM = (64, 0)


def evicting(when: Callable[[int, Group], bool]) -> Callable[[Scheduler], Scheduler]:
    """A wrapper that preempts a group whenever `when(step, group)` says so."""
    return lambda inner: PreemptNow(inner, when)


def once(group_id: str, at: int) -> Callable[[int, Group], bool]:
    """Evict this group in step `at`, if it runs then and never left before."""
    return lambda step, group: step == at and group.id == group_id and not group.num_preemptions


def after_outputs(num_tokens: int) -> Callable[[int, Group], bool]:
    """Evict whoever has drawn exactly so many tokens, once."""
    return lambda step, group: group.sequences[0].num_output == num_tokens and not group.num_preemptions


def run(preempt: Candidate, asks: list[Ask], when: Callable[[int, Group], bool] | None = None, **sizes: object) -> Play:
    """Play `asks` on an ample pool unless `sizes` (fields of EngineShape) say otherwise."""
    sizes = {"num_blocks": 64, "max_num_seqs": 8, "token_budget": 16, **sizes}
    shape = shape_for(preempt.plugins, preempt=preempt.name, **sizes)
    return play(preempt.plugins, shape, asks, wrap=evicting(when) if when else lambda inner: inner)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("host_blocks", HOST_ROOM)
def test_evicted_at_any_step_a_request_gives_the_same_tokens(
    preempt: Candidate, block_size: int, host_blocks: int
) -> None:
    expected = undisturbed(preempt.plugins, [VICTIM, MATE])
    reached = 0
    for cache in (True, False):
        for at in range(1, 20):
            done = run(
                preempt,
                [VICTIM, MATE],
                once("victim", at),
                block_size=block_size,
                num_host_blocks=host_blocks,
                prefix_cache=cache,
            )
            done.assert_sound()
            assert done.tokens == expected, (
                f"law 15: evicted at step {at}, blocks of {block_size}, {host_blocks} host blocks, prefix cache {cache}"
            )
            reached += done.preemptions["victim"]
    assert reached > 20, "the forced evictions did not happen"


@pytest.mark.parametrize("host_blocks", HOST_ROOM)
def test_evicted_again_and_again_a_request_gives_the_same_tokens(preempt: Candidate, host_blocks: int) -> None:
    asks = [VICTIM, MATE, Ask("third", tuple(range(30, 37)), 20, at=2)]
    done = run(preempt, asks, lambda step, group: step % 3 == 2 and step < 60, num_host_blocks=host_blocks)
    done.assert_sound()
    assert done.tokens == undisturbed(preempt.plugins, asks)
    assert min(done.preemptions.values()) > 1


def test_every_generated_token_survives_eviction(preempt: Candidate) -> None:
    """Case P01: evicted after output 7 of 20."""
    ask = Ask("one", (5, 6, 7), 20)
    done = run(preempt, [ask, MATE], after_outputs(7))
    done.assert_sound()
    assert done.preemptions["one"] == 1
    assert len(done.tokens["one"]) == 20
    assert done.tokens == undisturbed(preempt.plugins, [ask, MATE])


def test_nothing_is_drawn_before_all_tokens_are_back(preempt: Candidate) -> None:
    """Case P02: prompt 3, evicted after 24 outputs, eight tokens a step, no host room."""
    ask = Ask("one", (5, 6, 7), 40)
    done = run(preempt, [ask], after_outputs(24), token_budget=8, num_host_blocks=0, prefix_cache=False)
    done.assert_sound()
    assert done.preemptions["one"] == 1
    assert done.tokens == undisturbed(preempt.plugins, [ask])


def test_a_full_host_pool_stops_nobody(preempt: Candidate) -> None:
    """Two host blocks, three victims at once: whoever finds no room there is recomputed; nothing raises."""
    asks = [Ask(f"r{i}", tuple(range(1 + i, 12 + i)), 16) for i in range(4)]
    for host_blocks in (0, 1, 2, 5):
        done = run(preempt, asks, lambda step, group: step in (3, 7, 8), num_host_blocks=host_blocks)
        done.assert_sound()
        assert done.tokens == undisturbed(preempt.plugins, asks), f"law 15: {host_blocks} host blocks"
        assert done.engine.stats().preemptions["recompute"] > 0


@pytest.mark.parametrize("at", [1, 2, 6])
def test_aborting_a_request_that_is_away_frees_both_pools(preempt: Candidate, at: int) -> None:
    shape = shape_for(preempt.plugins, preempt=preempt.name, max_num_seqs=1, token_budget=16)
    wrap = evicting(once("victim", at))
    engine = build_engine(ShadowExecutor(shape.block_size), shape, plugins=preempt.plugins, wrap_scheduler=wrap)
    submit(engine, VICTIM)
    for _ in range(at + 1):
        engine.step()
    assert engine.stats().num_preempted == 1
    engine.abort(["victim"])
    blocks = engine.stats().blocks
    assert (blocks.free, blocks.host_free) == (blocks.total, blocks.host_total), f"law 8, aborted while away: {blocks}"
    engine.check()
    submit(engine, MATE)
    while engine.has_unfinished:
        engine.step()
    engine.check()


@pytest.mark.parametrize("host_blocks", [0, 6, 48])
def test_overload_with_aborts_gives_undisturbed_tokens_and_leaks_nothing(preempt: Candidate, host_blocks: int) -> None:
    asks = random_asks(21, 300 if preempt.quick else 2000, 0.24)
    aborts = random_aborts(22, asks, 0.15)
    shape = shape_for(
        preempt.plugins,
        preempt=preempt.name,
        num_blocks=24,
        num_host_blocks=host_blocks,
        max_num_seqs=8,
        token_budget=16,
    )
    done = play(preempt.plugins, shape, asks, aborts=aborts)
    done.assert_sound()
    assert sum(done.preemptions.values()) > 10, "the pool was meant to be short"
    expected = undisturbed(preempt.plugins, asks)
    lost = [ask.id for ask in asks if ask.id not in done.aborted and done.tokens.get(ask.id) != expected[ask.id]]
    assert not lost, f"law 15: {len(lost)} of {len(asks)} requests differ, the first is {lost[0]}"
    blocks = done.engine.stats().blocks
    assert (blocks.free, blocks.host_free) == (blocks.total, blocks.host_total), f"law 8: {blocks}"


def test_a_price_asked_in_every_step_changes_nothing(preempt: Candidate) -> None:
    """A scheduler may ask what everybody's eviction would cost, in every step."""

    class Asks(PreemptNow):
        def decide(self, view: View) -> Decision:
            for group in view.running:
                view.eviction_cost(group)
            return super().decide(view)

    asks = random_asks(23, 100, 0.3)
    shape = shape_for(preempt.plugins, preempt=preempt.name, num_blocks=24, num_host_blocks=24, token_budget=16)
    shape.max_num_seqs = 8
    plain = play(preempt.plugins, shape, asks)
    asked = play(preempt.plugins, shape, asks, wrap=lambda inner: Asks(inner, lambda step, group: False))
    asked.assert_sound()
    assert (asked.tokens, asked.preemptions) == (plain.tokens, plain.preemptions)
