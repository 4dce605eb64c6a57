from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.aio import AsyncLLM, run
from paged_core.engine.clock import RealClock
from paged_core.errors import EngineDeadError, RequestError
from paged_core.testing.build import build_engine
from paged_core.testing.seams import FaultyExecutor
from paged_core.testing.shadow import ShadowExecutor


def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture
def llm(shadow):
    made = AsyncLLM(engine=shadow(num_blocks=256))
    yield made
    made.shutdown()
    made.shutdown()
    assert not made._thread.is_alive()


async def collect(llm, prompt, params, **more):
    return [output async for output in llm.generate(prompt, params, **more)]


def test_many_requests_at_once_stream_to_the_cold_tokens(llm, cold):
    async def main():
        return await asyncio.gather(*(collect(llm, [i + 1] * 5, greedy(10)) for i in range(30)))

    for i, outputs in enumerate(run(main())):
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].token_ids == cold([i + 1] * 5, 10)
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == sorted(lengths)
        assert len(outputs) > 1


def test_an_invalid_request_raises_in_its_own_generator_only(llm, cold):
    async def main():
        good = asyncio.create_task(collect(llm, [1, 2], greedy(20)))
        with pytest.raises(RequestError, match="empty"):
            await collect(llm, [], greedy(5))
        return await good

    assert run(main())[-1].outputs[0].token_ids == cold([1, 2], 20)


def test_a09_a_cancelled_generator_aborts_its_request_and_frees_its_blocks(llm):
    async def leave_early(i):
        async for output in llm.generate([i % 200 + 1] * 6, greedy(50)):
            assert output.outputs[0].token_ids
            return

    async def main():
        for begin in range(0, 512, 16):
            await asyncio.gather(*(leave_early(begin + i) for i in range(16)))
        task = asyncio.create_task(collect(llm, [3] * 6, greedy(50)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        last = await collect(llm, [1, 2], greedy(5))
        for _ in range(200):
            if not llm.engine.has_unfinished:
                break
            await asyncio.sleep(0.01)
        return last

    assert run(main())[-1].finished
    llm.engine.check()


def test_abort_by_id_ends_the_stream_with_its_reason(llm):
    async def main():
        outputs = []
        async for output in llm.generate([1, 2], greedy(60), request_id="mine"):
            outputs.append(output)
            if len(outputs) == 3:
                await llm.abort("mine")
        return outputs

    outputs = run(main())
    assert outputs[-1].outputs[0].finish_reason in ("abort", "length")
    assert outputs[-1].finished


def test_a_dead_engine_tells_everyone_who_waits(plugins):
    engine = build_engine(FaultyExecutor(ShadowExecutor(4), {5: RuntimeError("device lost")}), plugins=plugins)
    llm = AsyncLLM(engine=engine)

    async def main():
        return await asyncio.gather(*(collect(llm, [i + 1], greedy(50)) for i in range(3)), return_exceptions=True)

    for error in run(main()):
        assert isinstance(error, EngineDeadError)
        assert "device lost" in str(error)
    assert not llm.is_running
    with pytest.raises(EngineDeadError):
        run(collect(llm, [1], greedy(1)))
    llm.shutdown()


def test_c07_works_from_a_worker_thread_and_leaves_signal_handlers_alone(shadow, cold):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    results = []

    def work():
        llm = AsyncLLM(engine=shadow())
        results.append(asyncio.run(collect(llm, [9, 8], greedy(4))))
        llm.shutdown()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0][-1].outputs[0].token_ids == cold([9, 8], 4)
    assert before == {number: signal.getsignal(number) for number in before}


def test_real_clock_reports_times_in_order(plugins):
    llm = AsyncLLM(engine=build_engine(ShadowExecutor(4), plugins=plugins, clock=RealClock()))
    metrics = run(collect(llm, [1, 2, 3], greedy(5)))[-1].metrics
    llm.shutdown()
    assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time <= metrics.finished_time
