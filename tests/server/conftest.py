"""A server in process over a small engine, spoken to through ASGI: by `httpx` for whole answers, by `Call` where it
matters what a client does in the middle of one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from paged_core.api.executor import Executor
from paged_core.engine.aio import AsyncLLM
from paged_core.engine.clock import RealClock
from paged_core.server.app import create_app
from paged_core.server.settings import ServeSettings
from paged_core.testing.build import EngineShape, build_engine, default_plugins, torch_sampler
from paged_core.testing.scripted import ScriptedExecutor, TableExecutor
from paged_core.testing.shadow_logits import ShadowLogits
from paged_core.testing.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from paged_core.api.batch import StepPlan
    from paged_core.api.executor import Ticket
    from paged_core.engine.engine import Engine

MAX_LEN = 256


class StepGate(Executor):
    """Wraps an executor; once `shut`, a step begins only when `allow` lets it."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._allowed = threading.Semaphore(0)
        self._shut = False
        self.waiting = threading.Event()

    def shut(self) -> None:
        self._shut = True

    def allow(self, num_steps: int) -> None:
        self._allowed.release(num_steps)

    def open(self) -> None:
        self._shut = False
        self._allowed.release(64)  # whoever waits; nobody does from now on

    def submit(self, plan: StepPlan) -> Ticket:
        if self._shut:
            self.waiting.set()
            assert self._allowed.acquire(timeout=60), "no step was allowed for a minute"
            self.waiting.clear()
        return self._inner.submit(plan)

    def capacity(self) -> Any:
        return self._inner.capacity()

    def start(self, *arguments: Any) -> None:
        self._inner.start(*arguments)

    def collect(self, ticket: Ticket) -> Any:
        return self._inner.collect(ticket)

    def close(self) -> None:
        self._inner.close()


class House:
    """One app over one engine. `post`, `get`: whole answers; `stream`: the events of a stream; `call`: a client that
    can leave."""

    def __init__(self, engine: Engine, gate: StepGate, **settings: Any) -> None:
        self.engine = engine
        self.gate = gate
        self.llm = AsyncLLM(engine=engine)
        self.app = create_app(self.llm, ServeSettings.load(**settings))
        self.server = self.app.state.server

    def close(self) -> None:
        self.gate.open()
        self.llm.shutdown()
        self.server.close()

    async def idle(self) -> None:
        """Wait until the engine has nothing to do, then assert that nothing leaked."""
        async with asyncio.timeout(30):
            while await self.llm.ask(lambda engine: engine.has_unfinished):
                await asyncio.sleep(0.005)
        await self.llm.ask(lambda engine: engine.check())

    def client(self) -> httpx.AsyncClient:
        # Like a real server's client: a failure is an answer, not an exception of the test's.
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    async def arequest(self, method: str, path: str, **how: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.request(method, path, **how)

    def get(self, path: str, **how: Any) -> httpx.Response:
        return asyncio.run(self.arequest("GET", path, **how))

    def post(self, path: str, body: Any = None, **how: Any) -> httpx.Response:
        if body is not None:
            how["json"] = body
        return asyncio.run(self.arequest("POST", path, **how))

    def stream(self, path: str, body: Any, **how: Any) -> list[Any]:
        """The events of a stream, parsed; the last one is "[DONE]" or an error."""
        response = self.post(path, {**body, "stream": True}, **how)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return self.events(response.text)

    @staticmethod
    def events(text: str) -> list[Any]:
        """The values of the events of a stream. Asserts that there is nothing else in it."""
        assert text.endswith("\n\n")
        lines = text.removesuffix("\n\n").split("\n\n")
        assert all(line.startswith("data: ") for line in lines), text
        values = [line.removeprefix("data: ") for line in lines]
        return [value if value == "[DONE]" else json.loads(value, parse_constant=refuse_constant) for value in values]

    @asynccontextmanager
    async def call(self, path: str, body: Any, **headers: str) -> AsyncIterator[Call]:
        call = Call(self.app, path, body, headers)
        try:
            yield call
        finally:
            await call.leave()


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class Call:
    """One POST by a client that reads as slowly as it likes, and that can leave."""

    def __init__(self, app: Any, path: str, body: Any, headers: dict[str, str]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self._arrived = asyncio.Event()
        self._gone = asyncio.Event()
        self._body = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        lines = {"content-type": "application/json", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in lines.items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.messages if m["type"] == "http.response.start"), None)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.messages).decode()

    async def until(self, enough: Callable[[Call], bool]) -> None:
        """Wait until `enough` of it has arrived."""
        async with asyncio.timeout(30):
            while not enough(self):
                self._arrived.clear()
                await self._arrived.wait()

    async def leave(self) -> None:
        """Close the connection; the server notices at its next look."""
        self._gone.set()
        self.reading.set()
        async with asyncio.timeout(30):
            await self.task

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return self._body.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        self.messages.append(message)
        self._arrived.set()


def logits_at(position: int) -> Any:
    """Logits of an output position, the same for every prompt; -1 is anywhere in a prompt."""
    import torch

    return torch.randn(320, generator=torch.Generator().manual_seed(position + 1)) * 3


@pytest.fixture(scope="session")
def plugins() -> Any:
    return default_plugins()


@pytest.fixture
def house(plugins: Any) -> Iterator[Callable[..., House]]:
    """Build a server. `script`: pieces of text that every greedy answer consists of; without it a model whose logits
    depend on every token before; with `table` on positions only, so that prompts can be scored. `shape`: fields of
    EngineShape; everything else is a setting of the server."""
    opened: list[House] = []

    def build(
        script: list[str | bytes] | None = None,
        shape: dict[str, Any] | None = None,
        table: bool = False,
        **settings: Any,
    ) -> House:
        made = EngineShape(**{"max_model_len": MAX_LEN, "num_blocks": 256, **(shape or {})})
        if table:
            executor: Any = TableExecutor(logits_at, torch_sampler(made, plugins))
        elif script is None:
            executor = ShadowLogits(made.block_size, torch_sampler(made, plugins))
        else:
            made.tokenizer = (shape or {}).get("tokenizer") or ByteTokenizer(script)
            executor = ScriptedExecutor([made.tokenizer.id_of(piece) for piece in script])
        gate = StepGate(executor)
        opened.append(House(build_engine(gate, made, plugins=plugins, clock=RealClock()), gate, **settings))
        return opened[-1]

    yield build
    for one in opened:
        one.close()


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Running:
    """A server process: where it listens, the key it wants, its ready line."""

    url: str
    key: str
    ready: str
    process: subprocess.Popen[str]


@contextmanager
def running_server(*arguments: str, key: str = "secret-key") -> Iterator[Running]:
    """A real `paged-core serve`, ready. What it writes to standard error goes to the test's."""
    program = "from paged_core.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", *arguments, "--port", "0"]
    environment = {**os.environ, "PAGED_SERVE_API_KEY": key, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready.startswith("ready: http://127.0.0.1:"), f"exit code {process.poll()}: {ready}"
        yield Running(ready.split()[1], key, ready, process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def smollm2_server(smollm2: Any) -> Iterator[Running]:
    """SmolLM2 behind a real server, for all tests of the session that need it; SIGTERM must end it with 0."""
    with running_server("smollm2-135m", "--num-blocks", "1024", "--host-memory", "0") as server:
        yield server
        server.process.terminate()
        assert server.process.wait(timeout=60) == 0
