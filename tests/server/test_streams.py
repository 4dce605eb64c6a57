"""What a stream does besides delivering an answer: waiting, failing, ending."""

from __future__ import annotations

import asyncio

import pytest

from paged_core.api.logits import LogitsProcessor
from paged_core.engine.aio import AsyncLLM
from paged_core.server import sse

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ENDLESS = {"temperature": 0, "ignore_eos": True, "max_tokens": 4000}
BODIES = {COMPLETIONS: {"prompt": "abc", **ENDLESS}, CHAT: {"messages": [{"role": "user", "content": "x"}], **ENDLESS}}
ROOMY = {"max_model_len": 5000, "num_blocks": 4000}


def test_headers_keep_proxies_from_gathering_a_stream(house):
    response = house(["Hi"]).post(COMPLETIONS, {"prompt": "a", "stream": True, "temperature": 0})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers


@pytest.mark.parametrize("path", BODIES)
def test_v04_a_failure_in_mid_stream_is_one_error_event_and_the_end(house, path):
    server = house(shape=ROOMY)

    async def main():
        async with server.call(path, {**BODIES[path], "stream": True}) as call:
            await call.until(lambda call: call.text.count("data: ") >= 4)
            server.llm.abort_all()
            await call.until(lambda call: call.messages[-1].get("more_body") is False)
            return call

    call = asyncio.run(main())
    *events, last = server.events(call.text)
    assert last["error"]["code"] == "shutting_down"
    assert all("error" not in event for event in events)
    assert call.status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_v18_when_the_engine_stops_everybody_is_told_at_once_and_health_turns_red(house, stream):
    server = house(shape=ROOMY)

    async def main():
        async with (
            server.call(COMPLETIONS, {**BODIES[COMPLETIONS], "stream": stream}) as call,
            server.call(CHAT, {**BODIES[CHAT], "stream": True}) as other,
        ):
            await other.until(lambda call: call.text.count("data: ") >= 2)
            server.gate.submit = None  # the next step fails
            await call.until(lambda call: call.messages and call.messages[-1].get("more_body", False) is False)
            await other.until(lambda call: call.messages[-1].get("more_body") is False)
            health = await server.arequest("GET", "/health")
            ready = await server.arequest("GET", "/ready")
            late = await server.arequest("POST", COMPLETIONS, json={"prompt": "a"})
            return call, other, health, ready, late

    call, other, health, ready, late = asyncio.run(main())
    assert server.events(other.text)[-1]["error"]["code"] == "engine_dead"
    if stream:
        assert server.events(call.text)[-1]["error"]["type"] == "server_error"
    else:
        assert call.status == 500
    assert (health.status_code, ready.status_code) == (503, 503)
    assert late.status_code == 503
    assert "NoneType" not in late.text, "the cause is for the log"


class Third(LogitsProcessor):
    """Refuses its third token."""

    def __init__(self):
        self.num = 0

    def fork(self):
        return Third()

    def apply(self, logits):
        self.num += 1
        if self.num > 3:
            raise ValueError("the grammar rejects this token")


@pytest.fixture
def rejecting(monkeypatch):
    """The prompt "bad" has a grammar that rejects its fourth token."""
    real = AsyncLLM.generate_all

    def with_processor(self, prompts, params, *rest, **routing):
        if prompts[0]["prompt_token_ids"] == list(b"bad"):
            params.logits_processors = [Third()]
        return real(self, prompts, params, *rest, **routing)

    monkeypatch.setattr(AsyncLLM, "generate_all", with_processor)


BAD = {"prompt": "bad", "temperature": 0, "max_tokens": 9, "ignore_eos": True}


def test_t03_a_grammar_that_rejects_a_token_ends_its_own_request_only(house, rejecting):
    server = house()

    async def main():
        good = {"prompt": "good", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
        both = await asyncio.gather(*(server.arequest("POST", COMPLETIONS, json=one) for one in (BAD, good)))
        await server.idle()
        return both

    failed, good = asyncio.run(main())
    assert good.json()["usage"]["completion_tokens"] == 30
    assert failed.status_code == 400
    assert "rejects this token" in failed.json()["error"]["message"]


def test_t03_a_stream_whose_grammar_rejects_a_token_ends_with_an_error_event(house, rejecting):
    server = house()

    async def main():
        server.gate.shut()
        async with server.call(COMPLETIONS, {**BAD, "stream": True}) as call:
            server.gate.allow(1)
            await call.until(lambda call: "data: " in call.text)
            server.gate.open()
            await call.until(lambda call: call.messages[-1].get("more_body") is False)
        await server.idle()
        return call

    call = asyncio.run(main())
    *events, last = server.events(call.text)
    assert "rejects this token" in last["error"]["message"]
    assert all("error" not in event for event in events)
    assert call.status == 200


def test_a_stream_that_waits_for_its_turn_says_so_with_comments(house, monkeypatch):
    monkeypatch.setattr(sse, "PATIENCE_S", 0.01)
    server = house(shape=ROOMY)

    async def main():
        server.gate.shut()
        async with server.call(CHAT, {**BODIES[CHAT], "max_tokens": 3, "stream": True}) as call:
            await call.until(lambda call: call.text.count(": waiting") >= 2)
            assert call.status == 200
            assert "data: " not in call.text
            server.gate.open()
            await call.until(lambda call: "[DONE]" in call.text)
            return call.text

    text = asyncio.run(main())
    assert text.startswith(": waiting\n\n")
    assert text.rindex(": waiting") < text.index("data: ")


@pytest.mark.parametrize("num", [1, 3])
def test_a_client_that_leaves_while_it_waits_is_aborted(house, monkeypatch, num):
    monkeypatch.setattr(sse, "PATIENCE_S", 0.01)
    server = house(shape=ROOMY)

    async def main():
        server.gate.shut()
        async with server.call(COMPLETIONS, {**BODIES[COMPLETIONS], "stream": True}) as call:
            await call.until(lambda call: call.text.count(": waiting") >= num)
        assert server.server.admission.inside == 0
        server.gate.open()
        await server.idle()

    asyncio.run(main())
    assert server.engine.stats().finished == {"abort": 1}


def test_a_client_that_is_gone_before_the_first_byte_leaves_nothing_behind(house):
    server = house(shape=ROOMY)

    async def main():
        call = server.call(COMPLETIONS, {**BODIES[COMPLETIONS], "stream": True})
        async with call as one:
            one.reading.clear()
            async with asyncio.timeout(30):
                while server.engine.stats().num_generated < 2:
                    await asyncio.sleep(0.001)
        await server.idle()

    asyncio.run(main())
    assert server.server.admission.inside == 0


def test_v25_a_budget_used_up_in_a_hidden_token_still_ends_the_stream(house):
    server = house([b"\xf0\x9f", b"\x98\x80"])
    events = server.stream(
        CHAT,
        {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 1}
        | {"stream_options": {"include_usage": True}},
    )
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == 1
    assert events[-3]["choices"][0]["finish_reason"] == "length"
