"""AsyncLLM over an engine that hangs in a step: who waits can be told, and who ends it does not hang as well."""

from __future__ import annotations

import asyncio
import threading

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.aio import AsyncLLM
from paged_core.errors import EngineDeadError
from paged_core.testing.build import build_engine
from paged_core.testing.shadow import ShadowExecutor


class Hanging(ShadowExecutor):
    """Steps wait for `go_on`."""

    def __init__(self):
        super().__init__(4)
        self.go_on, self.inside = threading.Event(), threading.Event()

    def submit(self, plan):
        self.inside.set()
        assert self.go_on.wait(60)
        return super().submit(plan)


@pytest.fixture
def hanging(plugins):
    executor = Hanging()
    llm = AsyncLLM(engine=build_engine(executor, plugins=plugins))
    yield executor, llm
    executor.go_on.set()
    assert llm.shutdown()


async def all_of(llm, prompt):
    return [output async for output in llm.generate(prompt, SamplingParams(max_tokens=9, ignore_eos=True))]


def test_everybody_who_waits_is_told_and_nothing_is_left_once_the_engine_goes_on(hanging):
    executor, llm = hanging

    async def run():
        running = asyncio.ensure_future(all_of(llm, "abc"))
        await asyncio.to_thread(executor.inside.wait, 30)
        queued = asyncio.ensure_future(all_of(llm, "xyz"))  # the engine has not even heard of it
        await asyncio.sleep(0.01)
        llm.give_up("it hangs")
        for one in (running, queued):
            with pytest.raises(EngineDeadError, match="it hangs"):
                await one
        assert llm.is_running
        executor.go_on.set()
        async with asyncio.timeout(30):
            while await llm.ask(lambda engine: engine.has_unfinished):
                await asyncio.sleep(0.005)
        await llm.ask(lambda engine: engine.check())
        assert (await all_of(llm, "and on"))[-1].finished

    asyncio.run(run())
    assert not llm._boxes


def test_a_shutdown_does_not_wait_longer_than_it_is_told(hanging):
    executor, llm = hanging

    async def run():
        waiting = asyncio.ensure_future(all_of(llm, "abc"))
        await asyncio.to_thread(executor.inside.wait, 30)
        assert not llm.shutdown(0.01)
        executor.go_on.set()
        with pytest.raises(EngineDeadError):
            await waiting

    asyncio.run(run())
    assert llm.shutdown(30)
