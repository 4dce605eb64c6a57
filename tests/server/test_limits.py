"""How much, how many, how long: bodies, the queue, time limits."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack

import httpx
import pytest

from paged_core.server.limits import time_limit

COMPLETIONS = "/v1/completions"
GOOD = {"prompt": "abc", "temperature": 0, "max_tokens": 3}
ENDLESS = {"prompt": "abc", "temperature": 0, "ignore_eos": True, "max_tokens": 4000}
ROOMY = {"max_model_len": 5000, "num_blocks": 4000}


async def waits_for_a_step(server):
    assert await asyncio.to_thread(server.gate.waiting.wait, 30)


class Trickle:
    """A body sent in pieces, without a length; counts what the server took of it."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.taken = 0

    async def __aiter__(self):
        for piece in self.pieces:
            self.taken += len(piece)
            yield piece


def test_a_body_larger_than_allowed_is_413(house):
    server = house(["Hi"], max_body=4096)
    body = json.dumps({**GOOD, "padding": "x" * 5000})
    response = server.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert server.post(COMPLETIONS, {**GOOD, "padding": "x" * 2000}).status_code == 200


def test_a_body_without_a_length_is_measured_while_it_is_read(house):
    server = house(["Hi"], max_body=4096)
    body = Trickle([b'{"prompt": "'] + [b"x" * 1000] * 500)

    async def send():
        async with server.client() as client:
            return await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})

    assert asyncio.run(send()).status_code == 413
    assert body.taken <= 8192, "the server read on although it knew"


def test_a_body_that_says_that_it_is_too_large_is_not_read_at_all(house):
    server = house(["Hi"], max_body=4096)
    body = Trickle([b"x" * 5000])

    async def send():
        headers = {"content-type": "application/json", "content-length": "5000"}
        async with server.client() as client:
            return await client.post(COMPLETIONS, content=body, headers=headers)

    assert asyncio.run(send()).status_code == 413
    assert body.taken == 0


def test_all_bodies_together_are_bounded_until_their_requests_have_ended(house):
    server = house(max_body=4096, max_bodies=10_000, shape={"max_model_len": 4000, "num_blocks": 2000})
    large = {"prompt": "abc", "ignore_eos": True, "max_tokens": 3000, "stream": True, "padding": "x" * 3800}

    async def main():
        async with server.call(COMPLETIONS, large) as first, server.call(COMPLETIONS, large) as second:
            for call in (first, second):
                await call.until(lambda call: "data: " in call.text)
            refused = await server.arequest("POST", COMPLETIONS, json={**GOOD, "padding": "x" * 3800})
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            small = await server.arequest("POST", COMPLETIONS, json=GOOD)
            assert small.status_code == 200
        return await server.arequest("POST", COMPLETIONS, json={**GOOD, "padding": "x" * 3800})

    assert asyncio.run(main()).status_code == 200


def test_a_body_that_does_not_arrive_is_408(house):
    server = house(["Hi"], body_timeout=0.05)

    async def send():
        async with server.call(COMPLETIONS, GOOD) as call:
            await call.until(lambda call: call.status is not None)
            return call

    async def main():
        never = asyncio.Event()

        async def slow():
            yield b'{"prompt": '
            await never.wait()

        async with server.client() as client:
            return await client.post(COMPLETIONS, content=slow(), headers={"content-type": "application/json"})

    assert asyncio.run(send()).status == 200
    assert asyncio.run(main()).status_code == 408


def test_more_requests_than_may_wait_get_429_and_a_time_to_come_back(house):
    server = house(shape={**ROOMY, "max_num_seqs": 1}, max_queue=1)

    async def main():
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(server.call(COMPLETIONS, {**ENDLESS, "stream": True}))
            await first.until(lambda call: "data: " in call.text)
            second = await stack.enter_async_context(server.call(COMPLETIONS, ENDLESS))
            async with asyncio.timeout(30):
                while server.server.admission.inside < 2:
                    await asyncio.sleep(0.001)
            refused = [
                await server.arequest("POST", COMPLETIONS, json={**GOOD, "stream": stream}) for stream in (False, True)
            ]
            watched = await server.arequest("GET", "/health")
            await second.leave()
            async with asyncio.timeout(30):
                while server.server.admission.inside > 1:
                    await asyncio.sleep(0.001)
            async with server.call(COMPLETIONS, {**GOOD, "stream": True}) as third:
                await first.leave()
                await third.until(lambda call: "[DONE]" in call.text)
        await server.idle()
        return refused, watched

    refused, watched = asyncio.run(main())
    for response in refused:
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
        assert 1 <= int(response.headers["retry-after"]) <= 60
    assert watched.status_code == 200
    assert server.server.admission.inside == 0


def test_a_batch_counts_every_prompt(house):
    server = house(["Hi"], shape={"max_num_seqs": 2}, max_queue=2)
    assert server.post(COMPLETIONS, {**GOOD, "prompt": ["a"] * 4}).status_code == 200
    response = server.post(COMPLETIONS, {**GOOD, "prompt": ["a"] * 5})
    assert response.status_code == 400, "it could never run"
    assert server.server.admission.inside == 0


def test_a_house_with_room_for_one_takes_one(house):
    server = house(["Hi"], shape={"max_num_seqs": 1}, max_queue=0)
    assert server.post(COMPLETIONS, GOOD).status_code == 200
    assert server.post(COMPLETIONS, {**GOOD, "prompt": ["a", "b"]}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["field", "header", "operator", "least"])
def test_a_request_ends_when_its_time_is_over(house, way, stream):
    server = house(shape=ROOMY, timeout=0.05 if way == "operator" else 30.0)
    body = {**ENDLESS, "stream": stream}
    headers = {}
    if way in ("field", "least"):
        body["timeout"] = 0.05 if way == "field" else 20
    if way in ("header", "least"):
        headers["X-Request-Timeout"] = "0.05"

    response = server.post(COMPLETIONS, body, headers=headers)
    if stream and response.status_code == 200:
        *_, last = server.events(response.text)
        assert last["error"]["code"] == "timeout"
        assert "[DONE]" not in response.text
    else:
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "timeout"
        assert response.headers["x-should-retry"] == "false"
    asyncio.run(server.idle())


def test_the_least_of_all_time_limits_counts():
    assert time_limit({}, None, 0) is None
    assert time_limit({}, None, 9) == 9
    assert time_limit({"x-request-timeout": "5"}, None, 0) == 5
    assert time_limit({"x-request-timeout": "5"}, 3, 9) == 3
    assert time_limit({"x-request-timeout": "2.5"}, 3, 9) == 2.5
    assert time_limit({"x-request-timeout": "50"}, 30, 9) == 9


def test_a_queued_request_ends_when_its_time_is_over(house):
    server = house(shape={**ROOMY, "max_num_seqs": 1})

    async def main():
        async with server.call(COMPLETIONS, {**ENDLESS, "stream": True}) as first:
            await first.until(lambda call: "data: " in call.text)
            return await server.arequest("POST", COMPLETIONS, json={**GOOD, "timeout": 0.05})

    assert asyncio.run(main()).status_code == 408


@pytest.mark.parametrize("value", ["", "soon", "-1", "0", "nan", "inf", "1e9"])
def test_a_time_limit_that_is_none_is_refused(house, value):
    response = house(["Hi"]).post(COMPLETIONS, GOOD, headers={"X-Request-Timeout": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"].lower() == "x-request-timeout"


@pytest.mark.parametrize(
    ("name", "body"), [("n", {"n": 3}), ("best_of", {"best_of": 3}), ("stop", {"stop": ["a", "b"]})]
)
def test_bounds_are_the_operator_s(house, name, body):
    server = house(["Hi"], max_n=2, max_stop=1, max_prompts=1)
    response = server.post(COMPLETIONS, {**GOOD, "temperature": 1, **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert "allows at most" in response.json()["error"]["message"]
    many = server.post(COMPLETIONS, {**GOOD, "prompt": ["a", "b"]})
    assert many.json()["error"]["param"] == "prompt"


def test_messages_are_bounded(house):
    server = house(["Hi"], max_messages=2)
    body = {"messages": [{"role": "user", "content": "x"}] * 3}
    assert server.post("/v1/chat/completions", body).json()["error"]["param"] == "messages"


def test_requests_with_one_id_do_not_meet(house):
    """Case S10: the caller's id is a name for people, not a key."""
    server = house()
    bodies = [{**GOOD, "prompt": "abc"}, {**GOOD, "prompt": "xyz", "n": 2, "temperature": 1, "seed": 1}]

    async def main():
        headers = {"X-Request-Id": "same"}
        return await asyncio.gather(
            *(server.arequest("POST", COMPLETIONS, json=body, headers=headers) for body in bodies)
        )

    together = asyncio.run(main())
    for response, body in zip(together, bodies, strict=True):
        assert isinstance(response, httpx.Response)
        assert response.headers["x-request-id"] == "same"
        assert response.json()["choices"] == server.post(COMPLETIONS, body).json()["choices"]


def test_log_probabilities_are_bounded_over_the_whole_request(house):
    server = house(table=True, max_logprob_entries=100)
    fits = {**GOOD, "logprobs": 4, "max_tokens": 10, "n": 2, "temperature": 1}
    assert server.post(COMPLETIONS, fits).status_code == 200
    for more in ({"max_tokens": 11}, {"n": 3}, {"logprobs": 5}, {"prompt": ["a", "b"]}, {"prompt_logprobs": 0}):
        response = server.post(COMPLETIONS, {**fits, **more})
        assert response.json()["error"]["param"] == "logprobs", more
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
    assert server.post("/v1/chat/completions", {**chat, "max_tokens": 100}).status_code == 200
    assert server.post("/v1/chat/completions", chat).status_code == 400, "it may go on to the model's limit"


def test_long_texts_do_not_hold_up_short_ones(house):
    server = house(["Hi"])
    entered, leave = threading.Event(), threading.Event()

    async def main():
        blocked = asyncio.create_task(server.server.texts.run(1 << 20, lambda: (entered.set(), leave.wait(30))))
        await asyncio.to_thread(entered.wait, 30)
        waiting = asyncio.create_task(server.arequest("POST", COMPLETIONS, json={**GOOD, "padding": "x" * 100_000}))
        answered = await server.arequest("POST", COMPLETIONS, json=GOOD)
        assert not waiting.done()
        leave.set()
        await blocked
        return answered, await waiting

    assert [response.status_code for response in asyncio.run(main())] == [200, 200]
