"""StaticScheduler over the shadow executor: who runs in which step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from paged_sched_static import StaticProvider, StaticSettings

from paged_core.api.params import SamplingParams
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.shadow import ShadowExecutor


class Watch(Scheduler):
    """Notes who runs in every step, and replaces the engine's scheduler by one with these settings."""

    def __init__(self, inner, **settings):
        self.inner, self.ran, self.entered = inner, [], []
        if settings:
            self.inner = StaticProvider().create(
                SchedulerNeed(64, 16, 64, 4, 64), StaticSettings(**settings), SimpleNamespace()
            )

    def decide(self, view):
        decision = self.inner.decide(view)
        ran = {run.group.id for run in decision.run}
        if decision.decode_all:
            ran |= {group.id for group in view.running if group.decoding and group not in decision.preempt}
        self.ran.append("".join(sorted(ran)))
        return decision

    def forget(self, group):
        self.inner.forget(group)


def played(requests, shape=None, **settings):
    """`requests`: name -> (prompt tokens, output tokens, step in which it arrives). Who ran, and preemptions."""
    made = []

    def watch(inner):
        made.append(Watch(inner, **settings))
        return made[0]

    shape = shape or EngineShape()
    shape.sched = "sched_static"
    engine = build_engine(ShadowExecutor(shape.block_size), shape, wrap_scheduler=watch)
    step = 0
    while engine.has_unfinished or any(at >= step for *_, at in requests.values()):
        for name, (prompt, output, at) in requests.items():
            if at == step:
                params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
                engine.add_request(name, [1 + ord(name)] * prompt, params)
        engine.step()
        step += 1
    engine.check()
    return made[0].ran, engine.stats().preemptions["recompute"]


def test_the_worked_example_of_the_readme() -> None:
    requests = {"a": (3, 2, 0), "b": (3, 5, 0), "c": (3, 3, 0), "d": (3, 1, 0)}
    ran, _ = played(requests, batch_size=2)
    assert ran == ["ab", "ab", "b", "b", "b", "cd", "c", "c"]


def test_without_a_size_a_batch_is_as_large_as_memory() -> None:
    """Four runs of 64 slots on 64 blocks of 4; whoever is done leaves a place that nobody takes."""
    requests = {name: (3, 1 + i, 0) for i, name in enumerate("abcdef")}
    ran, preempted = played(requests, EngineShape(alloc="alloc_contiguous"))
    assert ran == ["abcd", "bcd", "cd", "d", *["ef"] * 5, "f"]
    assert preempted == 0


def test_nobody_joins_a_batch_for_which_nobody_waited() -> None:
    ran, _ = played({"a": (3, 4, 0), "b": (3, 2, 1), "c": (3, 2, 2)})
    assert ran == ["a", "a", "a", "a", "bc", "bc"]


def test_prompts_that_one_step_cannot_hold_join_with_the_next_steps() -> None:
    """Twenty tokens a step: one prompt of 15 a step, whole. Who comes when all have joined is too late."""
    requests = {"a": (15, 4, 0), "b": (15, 4, 0), "c": (15, 4, 0), "d": (3, 1, 3)}
    ran, _ = played(requests, EngineShape(token_budget=20, max_num_seqs=8))
    assert ran == ["a", "ab", "abc", "abc", "bc", "c", "d"]


def test_a_batch_is_complete_when_its_next_member_finds_no_room_though_some_ends_meanwhile() -> None:
    requests = {"a": (3, 1, 0), "b": (3, 6, 0), "c": (30, 2, 0)}
    ran, _ = played(requests, EngineShape(num_blocks=8, prefix_cache=False))
    assert ran == ["ab", *["b"] * 5, *["c"] * 2]


@pytest.mark.parametrize("num_blocks", [8, 10])
def test_preempted_members_return_before_the_next_batch(num_blocks) -> None:
    requests = {"a": (8, 16, 0), "b": (8, 16, 0), "c": (3, 2, 1)}
    ran, preempted = played(requests, EngineShape(num_blocks=num_blocks, prefix_cache=False))
    assert preempted > 0
    assert ran[-2:] == ["c", "c"]
    assert not any("c" in step for step in ran[:-2])


def test_probe_collects_all_reasons() -> None:
    fit = StaticProvider().probe(SchedulerNeed(0, 0, 64, 4, 64, required=frozenset({"chunked_prefill"})))
    assert len(fit.reasons) == 3
