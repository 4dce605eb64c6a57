"""The life of a server process: loading, draining, failing, hanging; by real signals to a real process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from paged_core.errors import ConfigError
from paged_core.server.lifecycle import bind
from paged_core.server.settings import ServeSettings

PROGRAM = Path(__file__).with_name("staged_server.py")
STREAM = {"prompt": "x", "max_tokens": 50, "ignore_eos": True, "stream": True}


class Staged:
    """A server process whose engine does what files in `stage` say."""

    def __init__(self, stage: Path, port: int, process: subprocess.Popen[str]) -> None:
        self.stage, self.process = stage, process
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path, **how):
        return httpx.get(self.url + path, timeout=30, **how)

    def post(self, body, **how):
        return httpx.post(self.url + "/v1/completions", json=body, timeout=60, **how)

    async def until(self, path, enough):
        """Ask until the answer will do."""
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=self.url) as client:
            while True:
                try:
                    response = await client.get(path)
                    if enough(response):
                        return response
                except httpx.TransportError:
                    assert self.process.poll() is None, self.end()
                await asyncio.sleep(0.02)

    def ready(self):
        asyncio.run(self.until("/ready", lambda response: response.status_code == 200))

    def end(self):
        """(exit code, standard output, standard error)."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


class Reader:
    """A client that reads a stream to its end."""

    def __init__(self, server: Staged, body: dict) -> None:
        self.events: list[str] = []
        self.arrived = asyncio.Event()
        self.task = asyncio.ensure_future(self._read(server, body))

    async def _read(self, server, body):
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    self.events.append(line.removeprefix("data: "))
                    self.arrived.set()

    async def until(self, num_events):
        async with asyncio.timeout(60):
            while len(self.events) < num_events:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture
def staged(tmp_path):
    """Start a server: `stage`: files that are there from the start."""

    @contextmanager
    def start(*arguments, **stage):
        for name, text in stage.items():
            (tmp_path / name).write_text(str(text))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(PROGRAM), str(tmp_path), f"--port={port}", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
            try:
                yield Staged(tmp_path, port, process)
            finally:
                process.kill()

    return start


def test_an_address_that_is_not_ours_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.7:0: .*assign"):
        bind(ServeSettings.load(host="203.0.113.7", port=0))


@pytest.mark.slow
def test_while_loading_the_process_lives_but_takes_nothing_and_a_failed_load_is_one_line(staged):
    with staged("--api-key=key", wait_load="", bad_model="") as server:
        health = asyncio.run(server.until("/health", lambda response: True))
        assert (health.status_code, health.json()["status"]) == (200, "starting")
        ready = server.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "the model is being loaded")
        assert server.post(STREAM).status_code == 401
        refused = server.post(STREAM, headers={"Authorization": "Bearer key"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")
        assert int(refused.headers["retry-after"]) > 0
        (server.stage / "wait_load").unlink()
        code, out, err = server.end()
        assert (code, out) == (2, "")
        assert err.splitlines() == ["paged-core: this is no model"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_load(staged, number):
    with staged(wait_load="") as server:
        asyncio.run(server.until("/health", lambda response: (server.stage / "loading").exists()))
        server.process.send_signal(number)
        assert server.end() == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drain", "step_s", "completes"), [(0, 0.1, False), (2, 0.2, False), (5, 0.05, True), (60, 0.1, True)]
)
def test_v21_sigterm_lets_streams_end_within_the_window_and_tells_those_beyond(staged, drain, step_s, completes):
    async def run(server):
        readers = [Reader(server, STREAM) for _ in range(3)]
        for reader in readers:
            await reader.until(10)
        server.process.send_signal(signal.SIGTERM)
        if drain > 0:
            ready = await server.until("/ready", lambda response: response.status_code != 200)
            assert (ready.status_code, ready.json()["reason"]) == (503, "the server is shutting down")
            refused = await asyncio.to_thread(server.post, STREAM)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert server.get("/health").status_code == 200
        await asyncio.gather(*(reader.task for reader in readers))
        return readers

    with staged(f"--drain={drain}", slow=step_s) as server:
        server.ready()
        for reader in asyncio.run(run(server)):
            if completes:
                assert reader.events[-1] == "[DONE]"
                assert '"finish_reason":"length"' in reader.events[-2]
            else:
                assert '"code":"shutting_down"' in reader.events[-1]
                assert not any('"error"' in event for event in reader.events[:-1])
        code, _, err = server.end()
        assert code == 0
        assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_aborts_at_once(staged, second):
    async def run(server):
        reader = Reader(server, {**STREAM, "max_tokens": 200})
        await reader.until(3)
        server.process.send_signal(signal.SIGTERM)
        await server.until("/ready", lambda response: response.status_code == 503)
        server.process.send_signal(second)
        await reader.task
        return reader

    with staged("--drain=600", slow=0.2) as server:  # forty seconds to go
        server.ready()
        reader = asyncio.run(run(server))
        assert '"code":"shutting_down"' in reader.events[-1]
        assert len(reader.events) < 150
        assert server.end()[0] == 0


@pytest.mark.slow
def test_an_engine_that_fails_tells_everybody_inside_and_the_process_exits_with_the_cause(staged):
    async def run(server):
        readers = [Reader(server, {**STREAM, "max_tokens": 200}) for _ in range(3)]
        whole = asyncio.ensure_future(asyncio.to_thread(server.post, {**STREAM, "stream": False, "max_tokens": 200}))
        for reader in readers:
            await reader.until(5)
        await server.until("/metrics", lambda response: 'num_requests_running{model_name="test"} 4.0' in response.text)
        (server.stage / "break").touch()
        await asyncio.gather(whole, *(reader.task for reader in readers))
        return readers, whole.result()

    with staged(slow=0.05) as server:
        server.ready()
        readers, whole = asyncio.run(run(server))
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_dead")
        for reader in readers:
            assert '"code":"engine_dead"' in reader.events[-1]
            assert sum('"error"' in event for event in reader.events) == 1
        code, _, err = server.end()
        assert code == 1
        (line,) = [line for line in err.splitlines() if line.startswith("paged-core: ")]
        assert "the engine stopped: the stage broke (engine step" in line
        assert "Traceback" not in err


@pytest.mark.slow
def test_v18_an_engine_that_hangs_is_told_within_the_bound_and_left_at_the_end(staged):
    async def run(server):
        reader = Reader(server, STREAM)
        await reader.until(3)
        (server.stage / "hang").touch()
        sick = await server.until("/health", lambda response: response.status_code != 200)
        assert (sick.status_code, sick.json()["status"]) == (503, "unavailable")
        assert "has not finished a step" in sick.json()["reason"]
        assert (await server.until("/ready", lambda response: True)).status_code == 503
        refused = await asyncio.to_thread(server.post, STREAM)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_hangs")
        (server.stage / "hang").unlink()
        await server.until("/health", lambda response: response.status_code == 200)
        await reader.task
        assert reader.events[-1] == "[DONE]"
        reader = Reader(server, {**STREAM, "max_tokens": 200})
        await reader.until(3)
        (server.stage / "hang").touch()
        await server.until("/health", lambda response: response.status_code != 200)  # before, an abort may still pass
        server.process.send_signal(signal.SIGTERM)
        await reader.task
        assert '"code":"engine_dead"' in reader.events[-1]

    with staged("--stall=1", "--drain=0", slow=0.02) as server:
        server.ready()
        asyncio.run(run(server))
        code, _, err = server.end()
        assert code == 1
        assert err.splitlines()[-1] == "paged-core: the engine hangs in a step: left after 5 s"
