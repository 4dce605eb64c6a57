"""One server process for a whole campaign. After every test it must be at rest with every block free; at the end its
log must hold no traceback and SIGTERM must end it with 0."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("shadow_server.py")
KEY = "secret-key"
COMPLETIONS = "/v1/completions"
NUM_DESCRIPTORS = 128
"""What the server's shell allows it, at first."""


class Target:
    """A running server: `ask` whole answers, `raw` bytes over a socket of one's own, `head` of a request to stream."""

    key, num_descriptors = KEY, NUM_DESCRIPTORS

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid
        self.address = (url.split("//")[1].split(":")[0], int(url.rpartition(":")[2]))
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)

    def ask(self, prompt: str, num_tokens: int = 12) -> str:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
        response = self.client.post(COMPLETIONS, json=body)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def request(self, body: Any, path: str = COMPLETIONS, headers: bytes = b"") -> bytes:
        """The bytes of a POST. `body`: bytes, or what is to be sent as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d\r\n" % len(content) + headers + b"\r\n" + content

    def raw(self, data: bytes, wait_s: float = 60.0) -> bytes:
        """What the server answers until it closes, or says nothing for so long. (A client that shut its own side would
        have left, to the server.)"""
        answer = b""
        with socket.create_connection(self.address, timeout=wait_s) as sock:
            try:
                sock.sendall(data)
                while part := sock.recv(1 << 16):
                    answer += part
            except (ConnectionError, TimeoutError):
                pass  # the server may close while it is still being talked to, and may wait for more
        return answer

    def state(self) -> dict[str, Any]:
        response = self.client.get("/ui/data/pool")
        assert response.status_code == 200, response.text
        return response.json()

    async def at_rest(self, seconds: float = 30.0) -> None:
        """Wait until nobody is inside; every block must be free then."""
        idle = {"running": 0, "waiting": 0, "preempted": 0}
        state: dict[str, Any] = {}
        try:
            async with asyncio.timeout(seconds):
                while (state := self.state())["counts"] != idle or _in_use(state["pool"]):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"after {seconds:g} s: {state['counts']}, {state['pool']}")

    @property
    def resident(self) -> int:
        """Bytes of memory of the process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _in_use(pool: dict[str, int]) -> int:
    return pool["total"] - pool["free"]


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The server of all campaigns."""
    log = tmp_path_factory.mktemp("campaign") / "log"
    few = f"ulimit -S -n {NUM_DESCRIPTORS}; exec " + '"$@"'
    program = [sys.executable, str(PROGRAM), "--body-timeout=3", "--max-queue=500"]
    command = ["sh", "-c", few, "sh", *program]
    environment = {**os.environ, "PAGED_SERVE_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    with (
        log.open("w") as err,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment, cwd=log.parent
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready: http://127.0.0.1:"), log.read_text()
            target = Target(ready.split()[1], process.pid)
            yield target
            target.client.close()
            process.terminate()
            code = process.wait(timeout=60)
        finally:
            process.kill()
    said = log.read_text()
    assert "Traceback" not in said, said
    assert code == 0, said


@pytest.fixture
def target(campaign: Target) -> Iterator[Target]:
    """The server; at rest after the test."""
    yield campaign
    asyncio.run(campaign.at_rest())
