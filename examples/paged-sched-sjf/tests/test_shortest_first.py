"""What sched_sjf promises beyond the contract; the fixture `sched` is the plugin as the suite sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core import SamplingParams
from paged_core.api.scheduler import SchedulerNeed
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

    from paged_core.api.scheduler import Scheduler
    from paged_core.engine.engine import Engine

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def engine(sched: Candidate, ageing: float | None = None, **sizes: int) -> Engine:
    """One sequence at a time unless said otherwise, steps of a second on a virtual clock."""

    def with_ageing(scheduler: Scheduler) -> Scheduler:
        if ageing is None:
            return scheduler
        need = SchedulerNeed(64, 1, 64, 4, 64)
        backend: Scheduler = sched.provider.create(need, sched.provider.Settings(ageing=ageing), sched.plugins)
        return backend

    shape = EngineShape(sched=sched.name, **{"max_num_seqs": 1, **sizes})
    return build_engine(ShadowExecutor(4, step_s=1.0), shape, plugins=sched.plugins, wrap_scheduler=with_ageing)


def order_of_ends(running: Engine, prompts: dict[str, str]) -> tuple[list[str], dict[str, list[int]]]:
    """Request ids as they finish, and their tokens."""
    for name, prompt in prompts.items():
        running.add_request(name, prompt, PARAMS)
    return finish(running)


def finish(running: Engine) -> tuple[list[str], dict[str, list[int]]]:
    """Run until nothing is left."""
    ends, tokens = [], {}
    while running.has_unfinished:
        for output in running.step():
            if output.finished:
                ends.append(output.request_id)
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    return ends, tokens


def test_shortest_prompt_goes_first(sched: Candidate) -> None:
    ends, _ = order_of_ends(engine(sched), {"long": "x" * 30, "middle": "y" * 20, "short": "z"})
    assert ends == ["short", "middle", "long"]


@pytest.mark.parametrize(("ageing", "last"), [(0.0, "long"), (50.0, "late")])
def test_ageing_lets_a_long_prompt_pass_late_short_ones(sched: Candidate, ageing: float, last: str) -> None:
    running = engine(sched, ageing)
    running.add_request("first", "abc", PARAMS)
    running.add_request("long", "x" * 30, PARAMS)
    for _ in range(4):
        running.step()
    running.add_request("late", "z", PARAMS)
    ends, _ = finish(running)
    assert ends[-1] == last


def test_tokens_are_the_same_however_small_the_pool(sched: Candidate) -> None:
    prompts = {f"r{i}": "abcdefghij"[: 1 + i] * 3 for i in range(6)}
    _, ample = order_of_ends(engine(sched, max_num_seqs=6), prompts)
    small = engine(sched, max_num_seqs=6, num_blocks=12)
    _, tokens = order_of_ends(small, prompts)
    assert sum(small.stats().preemptions.values()) > 0, "the pool was meant to be too small"
    assert tokens == ample
