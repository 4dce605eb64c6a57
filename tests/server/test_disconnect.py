"""Nobody computes for a client that has left (cases V15, A09)."""

from __future__ import annotations

import asyncio

import pytest

from paged_core.server import completions

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ENDLESS = {"temperature": 0, "ignore_eos": True, "max_tokens": 4000}
BODIES = {COMPLETIONS: {"prompt": "abc", **ENDLESS}, CHAT: {"messages": [{"role": "user", "content": "x"}], **ENDLESS}}
ROOMY = {"max_model_len": 5000, "num_blocks": 4000}


async def stands_still(server):
    """Wait until the engine is about to begin a step that nobody allows."""
    assert await asyncio.to_thread(server.gate.waiting.wait, 30)


async def has_gone(server, num_steps):
    """Allow so many steps; the engine must then have nothing left to do, and nothing may have leaked."""
    server.gate.allow(num_steps)
    async with asyncio.timeout(30):
        while server.engine.has_unfinished:
            assert not (server.gate.waiting.is_set() and not server.gate._allowed._value), "it wants one more step"
            await asyncio.sleep(0.005)
    await server.idle()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_v15_a_client_that_leaves_is_aborted_within_two_steps(house, path, stream):
    server = house(shape=ROOMY)

    async def main():
        async with server.call(path, {**BODIES[path], "stream": stream}) as call:
            if stream:
                await call.until(lambda call: call.text.count("data: ") >= 3)
            else:
                async with asyncio.timeout(30):
                    while server.engine.stats().num_generated < 3:
                        await asyncio.sleep(0.001)
            server.gate.shut()
            await stands_still(server)
            await call.leave()
            assert server.server.admission.inside == 0
            await has_gone(server, 2)

    asyncio.run(main())


@pytest.mark.parametrize("reads", [True, False])
def test_the_source_of_a_stream_is_closed_and_not_left_to_the_garbage_collector(house, monkeypatch, reads):
    server = house(shape=ROOMY)
    kept = []
    opening, sourcing = completions.open_stream, completions.outputs

    def keep(source):
        kept.append(source)
        return source

    monkeypatch.setattr(completions, "open_stream", lambda request, chunks: opening(request, keep(chunks)))
    monkeypatch.setattr(completions, "outputs", lambda server, job: keep(sourcing(server, job)))

    async def main():
        async with server.call(COMPLETIONS, {**BODIES[COMPLETIONS], "stream": True}) as call:
            await call.until(lambda call: call.text.count("data: ") >= 2)
            if not reads:  # then it leaves while something is being sent
                call.reading.clear()
                enough = server.engine.stats().num_generated + 10
                async with asyncio.timeout(30):
                    while server.engine.stats().num_generated < enough:
                        await asyncio.sleep(0.001)
                call._gone.set()
                await call.task
        assert [source.ag_frame for source in kept] == [None, None]
        await server.idle()

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_v15_queued_requests_of_clients_that_left_never_run(house, stream):
    server = house(shape={**ROOMY, "max_num_seqs": 1})
    prompts = []
    server.llm.watchers.append(lambda engine, outputs: prompts.extend(output.prompt_token_ids for output in outputs))

    async def main():
        async with server.call(COMPLETIONS, {**BODIES[COMPLETIONS], "stream": True}) as first:
            await first.until(lambda call: call.text.count("data: ") >= 2)
            queued = [
                server.call(COMPLETIONS, {**BODIES[COMPLETIONS], "prompt": "zzz", "stream": stream}) for _ in "123"
            ]
            for one in queued:
                await one.__aenter__()
            async with asyncio.timeout(30):
                while server.engine.stats().num_waiting < 3:
                    await asyncio.sleep(0.001)
            for one in queued:
                await one.__aexit__(None, None, None)
            seen = first.text.count("data: ")
            await first.until(lambda call: call.text.count("data: ") >= seen + 5)
            stats = await server.llm.ask(lambda engine: engine.stats())
            assert (stats.num_waiting, stats.num_running) == (0, 1)
        await server.idle()

    asyncio.run(main())
    late = [output for output in prompts if output == list(b"zzz")]
    assert len(late) == 3, "their last outputs, of the aborts"
    assert server.engine.stats().num_prompt <= 3 + 3 * 3
    assert server.engine.stats().finished == {"abort": 4}


def test_a09_hundreds_of_streams_closed_after_their_first_chunk_leave_nothing_behind(house):
    server = house(shape={"max_model_len": 200, "num_blocks": 400})

    async def leave_early(i):
        body = {"prompt": [i % 200 + 1] * 6, "stream": True, "ignore_eos": True, "max_tokens": 150}
        async with server.call(COMPLETIONS, body) as call:
            await call.until(lambda call: b"data: " in call.text.encode())

    async def main():
        for begin in range(0, 208, 16):
            await asyncio.gather(*(leave_early(begin + i) for i in range(16)))
        await server.idle()
        stats = await server.llm.ask(lambda engine: engine.stats())
        assert (stats.num_running, stats.num_waiting, stats.blocks.used) == (0, 0, 0)
        return await server.arequest("POST", COMPLETIONS, json={"prompt": "abc", "temperature": 0, "max_tokens": 5})

    last = asyncio.run(main())
    cold = house().post(COMPLETIONS, {"prompt": "abc", "temperature": 0, "max_tokens": 5})
    assert last.json()["choices"] == cold.json()["choices"]


def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing_behind(house):
    server = house()

    async def main():
        body = {"prompt": "abc", "structured_outputs": {"regex": "(a|b){3}c"}}
        async with server.call(COMPLETIONS, body):
            async with asyncio.timeout(30):
                while not server.engine.has_unfinished:
                    await asyncio.sleep(0.001)
        await server.idle()

    asyncio.run(main())
    assert server.server.admission.inside == 0


def test_a_slow_reader_costs_one_output_and_still_gets_everything(house):
    server = house(shape={"max_model_len": 600, "num_blocks": 400})
    body = {"prompt": "abc", **ENDLESS, "max_tokens": 500}

    async def main():
        async with server.call(COMPLETIONS, {**body, "stream": True}) as call:
            await call.until(lambda call: "data: " in call.text)
            call.reading.clear()
            other = await server.arequest("POST", COMPLETIONS, json={**body, "prompt": "xyz"})
            await server.idle()  # the engine did not wait for the reader
            boxes = [box for box in _mailboxes() if box._unread]
            assert [sum(map(len, box._unread.values())) for box in boxes] == [1]
            sent = len(call.messages)
            call.reading.set()
            await call.until(lambda call: "[DONE]" in call.text)
            assert len(call.messages) - sent <= 4, "what piled up came as one delta"
            return other, call.text

    other, text = asyncio.run(main())
    assert other.status_code == 200
    joined = "".join(event["choices"][0]["text"] for event in server.events(text)[:-1])
    assert joined == server.post(COMPLETIONS, body).json()["choices"][0]["text"]


def _mailboxes():
    import gc

    from paged_core.engine.mailbox import Mailbox

    return [one for one in gc.get_objects() if type(one) is Mailbox]
