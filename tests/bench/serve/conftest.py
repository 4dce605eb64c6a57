"""A server of known timing, on a clock that jumps: nothing waits, and every time is exact.

The server and the client share one event loop and speak HTTP over a Unix socket, where what one end writes is there for
the other at once. Whenever the loop finds nothing to read, everybody waits for a timer, and the clock may jump to it.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import pytest
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

Result = TypeVar("Result")
DONE = b"data: [DONE]\n\n"
DROP = "drop the connection"


class JumpingSelector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Instead of waiting for a timer, moves the clock to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(60)
            assert ready, "everybody waits for nothing"
            return ready
        self.now += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now

    def stall(self, seconds: float) -> None:
        """As if something had kept the loop from running."""
        self.selector.now += seconds


@pytest.fixture
def loop() -> Any:
    loop = JumpingLoop()
    yield loop
    loop.close()


def event(**content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def text(piece: str) -> bytes:
    return event(choices=[{"index": 0, "text": piece, "finish_reason": None}], usage=None)


def usage(prompt: int, output: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output})


def paced(body: dict[str, Any]) -> list[Any]:
    """The first token after 0.5 s, the others each after 0.1 s, as many as asked for, then the usage."""
    count = body["max_tokens"]
    steps: list[Any] = [0.5]
    for i in range(count):
        steps += [text(f" {i}"), 0.1] if i < count - 1 else [text(" end")]
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return [*steps, usage(len(prompt.split()), count), DONE]


@dataclass
class Fake:
    """`answer(body)` is a list: seconds to wait, bytes to send, DROP; or (status, text). `tokens_of` is /tokenize."""

    answer: Callable[[dict[str, Any]], Any] = paced
    tokens_of: Callable[[dict[str, Any]], Sequence[int]] | None = None
    models: Sequence[dict[str, Any]] | None = ({"id": "fake-model", "max_model_len": 400},)
    key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {}}, status=401)
        return web.json_response({"data": list(self.models)} if self.models is not None else {}, status=200)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        if self.tokens_of is None:
            return web.Response(status=404)
        return web.json_response({"tokens": list(self.tokens_of(await request.json()))})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        steps = self.answer(body)
        if isinstance(steps, tuple):
            return web.Response(status=steps[0], text=steps[1])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for step in steps:
            if isinstance(step, bytes):
                await response.write(step)
            elif step is DROP:
                assert request.transport is not None
                request.transport.abort()
            else:
                await asyncio.sleep(step)
        return response


@pytest.fixture
def with_fake(loop: JumpingLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`with_fake(fake, work)`: what the coroutine `work` returns while `fake` answers to every http://."""
    path = str(tmp_path / "fake.sock")
    monkeypatch.setattr(aiohttp, "TCPConnector", lambda **how: aiohttp.UnixConnector(path, **how))

    @asynccontextmanager
    async def listening(fake: Fake) -> AsyncIterator[None]:
        runner = web.AppRunner(fake.app(), shutdown_timeout=0)
        await runner.setup()
        await web.UnixSite(runner, path).start()
        try:
            yield
        finally:
            await runner.cleanup()

    def run(fake: Fake, work: Coroutine[Any, Any, Result]) -> Result:
        async def inside() -> Result:
            async with listening(fake):
                return await work

        return loop.run_until_complete(inside())

    return run


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def words() -> Any:
    """The builders of events, for tests that write their own answers."""

    class Words:
        event = staticmethod(event)
        text = staticmethod(text)
        usage = staticmethod(usage)
        done = DONE
        drop = DROP
        paced = staticmethod(paced)

    return Words
