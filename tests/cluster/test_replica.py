"""EngineReplica without Ray around it: what it says of a call, what it reports of its load, how it ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from paged_core import SamplingParams
from paged_core.api.output_kind import RequestOutputKind
from paged_core.cluster import replica as module
from paged_core.cluster.order import Order
from paged_core.cluster.replica import EngineReplica
from paged_core.cluster.wire import Accepted, Answer, Begun, Joiner, Refused
from paged_core.errors import EngineDeadError
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = [{"prompt_token_ids": [1, 2, 3, 4, 5]}, {"prompt_token_ids": [9, 8, 7]}]


class FailingExecutor(ShadowExecutor):
    """Works until told not to."""

    fails = False

    def submit(self, plan: Any) -> Any:
        if self.fails:
            raise RuntimeError("boom")
        return super().submit(plan)


@pytest.fixture
def executor() -> FailingExecutor:
    return FailingExecutor(4)


@pytest.fixture
def replica(executor: FailingExecutor) -> Iterator[EngineReplica]:
    made = EngineReplica({"engine": build_engine(executor, EngineShape(max_num_seqs=4))}, stall_s=5.0)
    yield made
    made._llm.shutdown()


def order(source: str = "here") -> Order:
    return Order((), 8, 2, source)


def told(replica: EngineReplica, params: SamplingParams, prompts: Any = None) -> list[Any]:
    async def run() -> list[Any]:
        return [message async for message in replica.generate(order(), prompts or PROMPTS, params, {})]

    return asyncio.run(run())


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY])
def test_a_call_is_accepted_begun_and_answered_and_whole_answers_come_once(replica, kind):
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, output_kind=kind)
    messages = told(replica, params)
    assert messages[:2] == [Accepted(), Begun()]
    answers = [message for message in messages[2:] if isinstance(message, Answer)]
    assert len(answers) == len(messages) - 2
    if kind is RequestOutputKind.FINAL_ONLY:
        assert sorted(answer.index for answer in answers) == [0, 1]
    joiner = Joiner([prompt["prompt_token_ids"] for prompt in PROMPTS])
    last = {answer.index: joiner.join(answer) for answer in answers}
    assert all(output.finished and len(output.outputs[0].token_ids) == 6 for output in last.values())
    assert params.output_kind is kind, "the caller's parameters are the caller's"


def test_a_refusal_is_a_message(replica):
    messages = told(replica, SamplingParams(max_tokens=4), [{"prompt_token_ids": [10**9]}])
    assert messages[0] == Accepted()
    assert isinstance(messages[1], Refused)
    assert len(messages) == 2
    assert replica.record_routing_stats()["loads"] == {}


def test_load_is_told_by_source_and_tokens_until_they_are_prefilled(replica):
    async def run() -> None:
        params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
        async with (
            aclosing(replica.generate(order("a"), PROMPTS, params, {})) as first,
            aclosing(replica.generate(order("b"), PROMPTS, params, {})) as second,
        ):
            await anext(first)
            await anext(second)
            assert replica.record_routing_stats()["loads"] == {"a": (8, 2), "b": (8, 2)}
            assert await anext(first) == Begun()
            assert replica.record_routing_stats()["loads"] == {"a": (0, 2), "b": (8, 2)}
        assert replica.record_routing_stats()["loads"] == {}
        stats = await replica._llm.ask(lambda engine: engine.stats())
        assert (stats.num_running, stats.num_waiting, stats.blocks.used) == (0, 0, 0)

    asyncio.run(run())


def test_routers_are_told_the_size_of_the_pool(replica):
    facts = replica._llm.engine.facts
    told = replica.record_routing_stats()
    assert (told["num_blocks"], told["block_size"]) == (facts.num_blocks, facts.block_size)


def test_a_stopped_engine_ends_the_process(replica, executor, monkeypatch):
    ended = []
    monkeypatch.setattr(module.os, "_exit", ended.append)
    executor.fails = True
    with pytest.raises(EngineDeadError):
        told(replica, SamplingParams(max_tokens=4))
    assert ended == [1]
    with pytest.raises(EngineDeadError):
        asyncio.run(replica.check_health())


def test_an_engine_that_is_shut_down_does_not(replica, monkeypatch):
    monkeypatch.setattr(module.os, "_exit", lambda code: pytest.fail("the process was ended"))

    async def run() -> None:
        async with aclosing(replica.generate(order(), PROMPTS, SamplingParams(max_tokens=100), {})) as call:
            await anext(call)
            replica.__del__()
            with pytest.raises(EngineDeadError):
                async for _ in call:
                    pass

    asyncio.run(run())


def test_health_is_lost_by_a_step_that_takes_too_long(replica, monkeypatch):
    asyncio.run(replica.check_health())
    monkeypatch.setattr(type(replica._llm), "silent_s", 6.0)
    with pytest.raises(TimeoutError, match="not finished a step for 6 s"):
        asyncio.run(replica.check_health())
