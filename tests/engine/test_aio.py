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


async def collect_all(llm, prompts, params, **more):
    last = {}
    async for index, output in llm.generate_all(prompts, params, **more):
        last[index] = output
    return last


def test_several_prompts_are_answered_together(llm, cold):
    prompts = [[1, 2], [3, 4, 5], [6]]
    last = run(collect_all(llm, prompts, greedy(8), request_id="mine"))
    assert {index: one.outputs[0].token_ids for index, one in last.items()} == {
        i: cold(prompt, 8) for i, prompt in enumerate(prompts)
    }
    assert [last[i].request_id for i in range(3)] == ["mine", "mine-1", "mine-2"]


def test_of_prompts_of_which_one_is_invalid_none_is_run(llm):
    with pytest.raises(RequestError, match="empty"):
        run(collect_all(llm, [[1, 2], [3], []], greedy(8)))
    assert run(llm.ask(lambda engine: engine.stats().num_steps)) == 0
    assert run(llm.ask(lambda engine: engine.check())) is None


def test_a_defect_in_one_call_is_told_to_its_caller_alone(llm, cold):
    async def main():
        good = asyncio.create_task(collect(llm, [1, 2], greedy(20)))
        with pytest.raises(TypeError):
            await collect(llm, [3], greedy(5), no_such_routing=1)
        return await good

    assert run(main())[-1].outputs[0].token_ids == cold([1, 2], 20)
    assert llm.is_running


def test_questions_are_answered_between_steps_in_the_engine_s_thread(llm):
    assert run(llm.ask(lambda engine: threading.current_thread().name)) == "paged-core-engine"
    with pytest.raises(ZeroDivisionError):
        run(llm.ask(lambda engine: 1 / 0))
    assert llm.is_running


def test_nobody_waits_for_an_engine_that_has_ended(shadow):
    llm = AsyncLLM(engine=shadow())
    entered, leave = threading.Event(), threading.Event()

    async def main():
        blocking = asyncio.create_task(llm.ask(lambda engine: (entered.set(), leave.wait(30))))
        await asyncio.to_thread(entered.wait, 30)
        waiting = [asyncio.create_task(llm.ask(lambda engine: 1)), asyncio.create_task(collect(llm, [1], greedy(5)))]
        await asyncio.sleep(0)
        llm._closed = True
        llm._commands.put(None)  # what shutdown does first
        waiting.append(asyncio.create_task(_put_late(llm)))
        await asyncio.sleep(0)
        leave.set()
        await blocking
        return await asyncio.gather(*waiting, return_exceptions=True)

    answers = run(main())
    assert answers[0] == 1
    assert all(isinstance(error, EngineDeadError) for error in answers[1:])
    llm._thread.join()


async def _put_late(llm):
    """A command that was put after the one that ends the thread."""
    loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    from paged_core.engine.aio import _Command

    llm._commands.put(_Command(lambda: None, lambda error: loop.call_soon_threadsafe(answer.set_exception, error)))
    await answer


def test_abort_all_ends_every_stream_with_its_reason(llm):
    async def main():
        tasks = [asyncio.create_task(collect(llm, [i + 1] * 4, greedy(58))) for i in range(4)]
        while await llm.ask(lambda engine: len(engine.unfinished_ids)) < 4:
            await asyncio.sleep(0.001)
        llm.abort_all()
        return await asyncio.gather(*tasks)

    assert {outputs[-1].outputs[0].finish_reason for outputs in run(main())} <= {"abort", "length"}


def test_watchers_see_every_output_however_slow_the_reader(llm):
    seen = []
    llm.watchers.append(lambda engine, outputs: seen.extend(len(one.outputs[0].token_ids) for one in outputs))

    async def main():
        async for _output in llm.generate([1, 2], greedy(30)):
            while len(seen) < 30:
                await asyncio.sleep(0.001)

    run(main())
    assert seen == list(range(1, 31))


def test_a_time_limit_ends_a_request_by_the_engine_s_clock(plugins):
    llm = AsyncLLM(engine=build_engine(ShadowExecutor(4, step_s=0.0), plugins=plugins, clock=RealClock()))
    last = run(collect(llm, [1, 2], greedy(60), timeout=0.0))[-1]
    llm.shutdown()
    assert last.finished
    assert (last.outputs[0].finish_reason, last.error) == ("abort", "its deadline passed")


def test_silence_is_measured_while_there_is_work_only(shadow):
    llm = AsyncLLM(engine=shadow())
    assert run(llm.ask(lambda engine: llm.silent_s)) >= 0.0
    stuck, leave = threading.Event(), threading.Event()

    async def main():
        task = asyncio.create_task(llm.ask(lambda engine: (stuck.set(), leave.wait(30))))
        await asyncio.to_thread(stuck.wait, 30)
        first = llm.silent_s
        await asyncio.sleep(0.02)
        second = llm.silent_s
        leave.set()
        await task
        return first, second

    first, second = run(main())
    assert second > first
    run(llm.ask(lambda engine: None))
    llm.shutdown()


def test_run_takes_a_loop_of_its_own():
    async def work():
        return type(asyncio.get_running_loop()).__module__

    assert run(work()).partition(".")[0] in ("uvloop", "asyncio")
