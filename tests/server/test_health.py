"""/health and /ready: who watches over the process is told the truth, and nobody else is let in meanwhile."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from paged_core.server.front import Front
from paged_core.server.settings import ServeSettings


def ask(app, method, path, **how):
    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, **how)

    return asyncio.run(run())


async def hang(server, call):
    """Until the engine is inside a step that does not end."""
    while not server.gate.waiting.is_set():
        await asyncio.sleep(0.005)
    assert not call.task.done()


def test_an_idle_engine_is_healthy_however_long_it_has_been_idle(house):
    server = house(stall=0.01)
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200

    async def run():
        await server.idle()
        await asyncio.sleep(0.1)
        return await server.arequest("GET", "/health")

    assert asyncio.run(run()).status_code == 200


def test_v18_an_engine_that_hangs_is_told_and_takes_nobody_until_it_goes_on(house):
    server = house(stall=0.05)

    async def run():
        server.gate.shut()
        async with server.call("/v1/completions", {"prompt": "a", "max_tokens": 1}) as call:
            await hang(server, call)
            await asyncio.sleep(0.1)
            answers = [await server.arequest("GET", path) for path in ("/health", "/ready", "/v1/models")]
            answers.append(await server.arequest("POST", "/v1/completions", json={"prompt": "a"}))
            server.gate.open()
            await call.task
            await server.idle()
            return answers, call, await server.arequest("GET", "/health")

    (health, ready, models, refused), call, afterwards = asyncio.run(run())
    assert health.status_code == ready.status_code == models.status_code == refused.status_code == 503
    assert health.json()["reason"].startswith("the engine has not finished a step for")
    assert refused.json()["error"]["code"] == "engine_hangs"
    assert int(refused.headers["retry-after"]) > 0
    assert call.status == afterwards.status_code == 200


def test_an_engine_that_works_within_the_bound_is_healthy(house):
    server = house(stall=600)

    async def run():
        server.gate.shut()
        async with server.call("/v1/completions", {"prompt": "a", "max_tokens": 1}) as call:
            await hang(server, call)
            answer = await server.arequest("GET", "/health")
            server.gate.open()
            return answer

    assert asyncio.run(run()).status_code == 200


def test_a_failed_engine_turns_health_red_at_once_and_fails_everybody_inside(house, monkeypatch):
    server = house(script=["a"] * 200)

    def fail(plan):
        raise RuntimeError("broken")

    async def run():
        server.gate.shut()
        whole = server.call("/v1/completions", {"prompt": "a", "max_tokens": 200})
        stream = server.call("/v1/completions", {"prompt": "a", "max_tokens": 200, "stream": True})
        async with whole as first, stream as second:
            while "data:" not in second.text:
                server.gate.allow(1)
                await asyncio.sleep(0.01)
            assert not first.task.done()
            monkeypatch.setattr(server.gate._inner, "submit", fail)
            server.gate.open()
            await asyncio.gather(first.task, second.task)
            answers = [await server.arequest("GET", path) for path in ("/health", "/ready", "/metrics")]
            answers.append(await server.arequest("POST", "/v1/completions", json={"prompt": "a"}))
            return first, second, answers

    first, second, (health, ready, metrics, refused) = asyncio.run(run())
    assert (health.status_code, health.json()["reason"]) == (503, "the engine has stopped")
    assert ready.status_code == refused.status_code == 503
    assert metrics.status_code == 500
    assert refused.json()["error"]["code"] == "engine_dead"
    assert (first.status, second.status) == (500, 200)
    events = second.text.strip().split("\n\n")
    assert '"code":"engine_dead"' in events[-1]
    assert sum("error" in event for event in events) == 1
    assert "broken" not in first.text + second.text + health.text + refused.text


def test_watchers_may_ask_without_a_body(house):
    server = house(api_key=("key",))
    for path in ("/health", "/ready"):
        response = asyncio.run(server.arequest("HEAD", path))
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("GET", "/health", None, 200),
        ("HEAD", "/health", None, 200),
        ("GET", "/ready", None, 503),
        ("GET", "/v1/models", "key", 503),
        ("POST", "/v1/chat/completions", "key", 503),
        ("GET", "/metrics", "key", 503),
        ("GET", "/nothing", "key", 503),
        ("GET", "/v1/models", None, 401),
        ("POST", "/health", None, 401),
        ("GET", "/health/", None, 401),
    ],
)
def test_what_a_server_says_while_it_loads(method, path, key, status):
    front = Front(ServeSettings.load(api_key=("key",)))
    response = ask(front, method, path, headers={"Authorization": f"Bearer {key}"} if key else {})
    assert response.status_code == status
    assert response.headers["x-request-id"]
    if status == 503:
        assert int(response.headers["retry-after"]) > 0
    if status == 503 and path != "/ready":
        assert response.json()["error"]["code"] == "starting"


def test_once_it_is_loaded_the_application_answers(house):
    front = Front(ServeSettings.load())
    assert ask(front, "GET", "/ready").status_code == 503
    front.app = house().app
    assert ask(front, "GET", "/ready").status_code == 200
