"""RemoteLLM over a handle that is played: what it sends, what it makes of answers, deaths, refusals and silence."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from paged_core import SamplingParams
from paged_core.api.output import CompletionOutput, RequestOutput
from paged_core.cluster.fleet import Fleet
from paged_core.cluster.remote import RemoteLLM
from paged_core.cluster.wire import Accepted, Answer, Begun, Refused
from paged_core.engine.aio import AsyncLLM
from paged_core.errors import EngineDeadError, RequestError
from paged_core.server.app import create_app
from paged_core.server.errors import ApiError
from paged_core.server.settings import ServeSettings
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("ray")
PROMPTS = [{"prompt_token_ids": list(range(40))}]


class Call:
    """One call of a replica: its script is a list of messages, exceptions to raise, and None for silence."""

    def __init__(self, script: list[Any], arguments: tuple[Any, ...]) -> None:
        self.script, self.arguments = list(script), arguments
        self.is_cancelled = False

    async def __anext__(self) -> Any:
        if self.is_cancelled:
            from ray.serve.exceptions import RequestCancelledError

            raise RequestCancelledError("x")
        if not self.script:
            raise StopAsyncIteration
        step = self.script.pop(0)
        if step is None:
            self.script.insert(0, None)
            while not self.is_cancelled:
                await asyncio.sleep(0.001)
            return await self.__anext__()
        if isinstance(step, BaseException):
            raise step
        return step

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """Plays one script a call, in turn; `place` is where the router puts an order."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.calls: list[Call] = []
        self.generate = self

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, *arguments: Any) -> Call:
        self.calls.append(Call(self.scripts[len(self.calls)], arguments))
        arguments[0].replica = f"replica {len(self.calls)}"
        return self.calls[-1]


def output(text: str, finished: bool = False) -> Any:
    branch = CompletionOutput(0, text, [1] * len(text), finish_reason="stop" if finished else None)
    return Answer(0, RequestOutput("x", None, [7, 7], [branch], finished))


def died() -> BaseException:
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


@pytest.fixture
def remote() -> Iterator[Callable[..., RemoteLLM]]:
    engine = build_engine(ShadowExecutor(4), EngineShape(max_num_seqs=4))

    def build(*scripts: list[Any], patience_s: float = 30.0) -> RemoteLLM:
        fleet = Fleet("mine", {}, engine.tokenizer, 4, 2, 3, 1.0, 0.0, ServeSettings.load(stall=patience_s))
        return RemoteLLM(Handle(*scripts), fleet, engine.facts)

    yield build
    engine.close()


def texts(llm: RemoteLLM, params: SamplingParams | None = None, **routing: Any) -> list[str]:
    async def run() -> list[str]:
        return [out.outputs[0].text async for _, out in llm.generate_all(PROMPTS, params, **routing)]

    return asyncio.run(run())


def calls(llm: RemoteLLM) -> list[Call]:
    handle: Any = llm._handle
    return list(handle.calls)


def test_outputs_come_back_with_their_prompt_and_the_order_tells_the_router(remote):
    llm = remote([Accepted(), Begun(), output("a"), output("b", finished=True)])

    async def run() -> Any:
        return [pair async for pair in llm.generate_all(PROMPTS, SamplingParams(n=3), cache_salt="s", adapter="z")]

    (index, first), (_, last) = asyncio.run(run())
    assert (index, first.outputs[0].text, last.outputs[0].text, last.finished) == (0, "a", "ab", True)
    assert last.prompt_token_ids == list(range(40))
    order, prompts, params, routing = calls(llm)[0].arguments
    assert (order.num_tokens, order.num_seqs, [len(keys) for keys in order.keys]) == (40, 3, [40 // 4])
    assert (prompts, params.n, routing) == (PROMPTS, 3, {"cache_salt": "s", "adapter": "z"})
    assert order.has_begun
    assert order.has_ended
    assert not calls(llm)[0].is_cancelled
    assert llm.silent_s == 0


def test_salts_and_adapters_divide_what_the_router_may_take_for_cached(remote):
    found = set()
    for routing in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"adapter": "a"}):
        llm = remote([output("x", finished=True)])
        texts(llm, **routing)
        found.add(calls(llm)[0].arguments[0].keys)
    assert len(found) == 4


@pytest.mark.parametrize("so_far", [[], [Accepted()], [Accepted(), Begun()]])
def test_a_call_of_which_nothing_was_seen_goes_to_another_replica(remote, so_far):
    llm = remote([*so_far, died()], [Accepted(), output("all", finished=True)])
    assert texts(llm) == ["all"]
    first, second = (call.arguments[0] for call in calls(llm))
    assert first.has_ended
    assert first.was_lost
    assert not second.was_lost
    assert calls(llm)[0].is_cancelled


def test_once(remote):
    llm = remote([died()], [Accepted(), died()], [output("never", finished=True)])
    with pytest.raises(ApiError) as failed:
        texts(llm)
    assert (failed.value.status_code, failed.value.code, len(calls(llm))) == (503, "replica_died", 2)
    assert failed.value.headers == {"Retry-After": "1"}


def test_what_was_seen_is_not_begun_anew(remote):
    llm = remote([Accepted(), output("a"), died()], [output("never", finished=True)])
    seen = []

    async def run() -> None:
        async for _, out in llm.generate_all(PROMPTS):
            seen.append(out.outputs[0].text)

    with pytest.raises(ApiError) as failed:
        asyncio.run(run())
    assert (seen, failed.value.code, len(calls(llm))) == (["a"], "replica_died", 1)


def test_an_engine_that_stopped_is_a_replica_that_died(remote):
    from ray.exceptions import RayTaskError

    stopped = RayTaskError("generate", "traceback", EngineDeadError("the engine stopped: boom"))
    assert texts(remote([Accepted(), stopped], [output("all", finished=True)])) == ["all"]


def test_another_failure_of_a_replica_is_no_death(remote):
    from ray.exceptions import RayTaskError

    llm = remote([Accepted(), RayTaskError("generate", "traceback", KeyError("bug"))], [])
    with pytest.raises(RayTaskError):
        texts(llm)
    assert len(calls(llm)) == 1


def test_a_refusal_is_the_engine_s(remote):
    with pytest.raises(RequestError, match="too long") as refused:
        texts(remote([Accepted(), Refused("too long", "prompt")]))
    assert refused.value.field == "prompt"


def test_a_time_limit_goes_on_through_a_second_try(remote):
    llm = remote([died()], [output("all", finished=True)])
    texts(llm, timeout=50.0)
    first, second = (call.arguments[3]["timeout"] for call in calls(llm))
    assert 40 < second < first <= 50


def test_without_a_replica_a_call_waits_for_a_bounded_time(remote):
    llm = remote([None], patience_s=0.05)
    with pytest.raises(ApiError) as failed:
        texts(llm)
    assert (failed.value.status_code, failed.value.code) == (503, "no_replica")
    assert calls(llm)[0].is_cancelled
    assert llm.silent_s == 0


def test_a_replica_that_has_the_call_may_take_its_time(remote):
    llm = remote([Accepted(), None], patience_s=0.01)

    async def run() -> None:
        task = asyncio.create_task(anext(llm.generate_all(PROMPTS)))
        await asyncio.sleep(0.1)
        assert not task.done()
        assert llm.silent_s == 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert calls(llm)[0].is_cancelled
    assert calls(llm)[0].arguments[0].has_ended


def test_how_long_a_call_waits_for_a_replica_is_told(remote):
    llm = remote([None])

    async def run() -> None:
        task = asyncio.create_task(anext(llm.generate_all(PROMPTS)))
        await asyncio.sleep(0.05)
        assert llm.silent_s > 0
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(run())


def test_who_leaves_has_the_call_cancelled(remote):
    llm = remote([Accepted(), output("a"), None])

    async def run() -> None:
        stream = llm.generate_all(PROMPTS)
        await anext(stream)
        await stream.aclose()

    asyncio.run(run())
    assert calls(llm)[0].is_cancelled


@pytest.mark.parametrize(("end", "kind"), [("abort_all", ApiError), ("give_up", EngineDeadError)])
def test_the_end_is_told_to_everybody_inside_and_to_whoever_comes(remote, end, kind):
    llm = remote([Accepted(), output("a"), None], [])
    assert llm.is_running

    async def run() -> None:
        stream = llm.generate_all(PROMPTS)
        await anext(stream)
        getattr(llm, end)(*(["it is over"] if end == "give_up" else []))
        with pytest.raises(kind):
            await anext(stream)
        with pytest.raises(kind):
            await anext(llm.generate_all(PROMPTS))

    asyncio.run(run())
    assert not llm.is_running
    assert len(calls(llm)) == 1


def test_the_app_admits_as_many_as_all_replicas_run_and_the_queue_holds(remote):
    llm = remote()
    app = create_app(llm, ServeSettings.load(max_queue=5))
    assert app.state.server.admission.limit == 4 * 3 + 5
    assert app.state.server.names == ("mine",)
    app.state.server.close()


def test_an_engine_alone_offers_the_same(remote):
    """Whatever the app asks of a backend, both have."""
    from paged_core.server.backend import Backend

    names = {name for name in vars(Backend) if not name.startswith("_")}
    assert names >= {"generate_all", "ask_all", "abort_all", "give_up"}
    for kind in (AsyncLLM, RemoteLLM):
        assert {name for name in names - {"engine"} if not hasattr(kind, name)} == set()
