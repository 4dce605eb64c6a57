"""A served model over ranks: clients are told when a rank dies or hangs; neither processes nor the port are left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from paged_core.testing.tiny import write_tiny_llama

httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.slow

BOUND_S = 90
COMMAND = [sys.executable, "-c", "from paged_core.cli import main; main()"]
BODY = {"prompt": "x", "ignore_eos": True, "stream": True}
CLIENTS = 16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One that can go on for long."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return str(write_tiny_llama(folder, max_position_embeddings=8192))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(pid):
    """Worker processes among a process's children."""
    found = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in each.read_text().split()]
    return [child for child in found if b"paged_exec_tp.child" in Path(f"/proc/{child}/cmdline").read_bytes()]


@contextmanager
def served(tiny, *flags, **variables):
    """A server that is ready; its process, address and workers."""
    port = free_port()
    arguments = ["serve", f"--port={port}", f"--model={tiny}", "--tensor-parallel-size=2", "--num-blocks=8192", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            deadline = time.monotonic() + BOUND_S
            while not is_ready(port):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process, port, children(process.pid)
        finally:
            process.kill()


def is_ready(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.TransportError:
        return False


def read(port, max_tokens, events=None):
    """The events of a stream, to whatever end it comes; `events` takes them as they come."""
    events = [] if events is None else events
    body = {**BODY, "max_tokens": max_tokens}
    with (
        httpx.Client(timeout=BOUND_S) as client,
        client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line.removeprefix("data: "))
    return events


@pytest.mark.parametrize(
    ("how", "flags", "variables", "cause"),
    [
        (signal.SIGKILL, (), {}, "was killed by SIGKILL"),
        (signal.SIGSTOP, ("--stall=1",), {"PAGED_PLUGINS__EXEC_TP__STEP_TIMEOUT_S": "4"}, "is stopped or stuck"),
    ],
    ids=["killed", "stopped"],
)
def test_a_lost_rank_fails_every_request_and_ends_the_server_with_the_cause(tiny, gone, how, flags, variables, cause):
    with served(tiny, *flags, **variables) as (process, port, workers), ThreadPoolExecutor(CLIENTS) as clients:
        assert len(workers) == 2
        assert read(port, 40)[-1] == "[DONE]"  # the first steps, which may take longer, are behind us
        arrived = [[] for _ in range(CLIENTS)]
        streams = [clients.submit(read, port, 7000, events) for events in arrived]
        while not all(arrived):
            assert not any(stream.done() for stream in streams)
            time.sleep(0.01)
        os.kill(workers[1], how)
        if how == signal.SIGSTOP:
            wait_for_red(port)
        for stream in streams:
            assert '"code":"engine_dead"' in stream.result(timeout=BOUND_S)[-1]
        _, errors = process.communicate(timeout=BOUND_S)
        assert process.returncode == 1
        (line,) = [line for line in errors.splitlines() if line.startswith("paged-core: ")]
        assert f"rank 1 of 2 (process {workers[1]}) {cause}" in line
        gone(workers)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))


def wait_for_red(port):
    """While the engine still waits for the rank, whoever watches over the server is told."""
    deadline = time.monotonic() + BOUND_S
    while httpx.get(f"http://127.0.0.1:{port}/health", timeout=BOUND_S).status_code != 503:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_signal_ends_server_and_ranks(tiny, gone):
    with served(tiny) as (process, port, workers):
        assert read(port, 5)[-1] == "[DONE]"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=BOUND_S)
        assert process.returncode == 0, errors
        gone(workers)
