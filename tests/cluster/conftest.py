"""Ray on this machine, in two shapes: the one that `paged-core serve --replicas` starts for itself, and a cluster of
several logical nodes to be joined. Both are gone after the module that used them, to the last process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.testing import tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STORE_BYTES = 80 << 20
PROGRAM = [sys.executable, "-c", "from paged_core.cli import main; main()"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@pytest.fixture(scope="session")
def ray() -> None:
    """Ray is here and imported, with the settings that it reads then; or the test is skipped. Its own warnings, of
    pydantic and others, are no concern of ours."""
    if find_spec("ray") is None:
        pytest.skip('needs Ray: pip install "paged-core[ray]"')
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        import ray.cluster_utils
        import ray.serve  # noqa: F401


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny checkpoint, with room for answers that take a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.CONFIG, "max_position_embeddings", 4096)
        return str(tiny.write_tiny_llama(tmp_path_factory.mktemp("cluster") / "tiny"))


def wait_until(is_so: Callable[[], Any], what: str, most_s: float = 240) -> Any:
    """What `is_so` returns, once that is true; a failure, should it never be."""
    end = time.monotonic() + most_s
    while not (found := is_so()):
        assert time.monotonic() < end, f"not so after {most_s} s: {what}"
        time.sleep(0.1)
    return found


def descendants(pid: int) -> set[int]:
    """Processes that `pid` started, and those that they started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        parents[int(path.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return found - {pid}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(processes: set[int], most_s: float = 90) -> None:
    """A failure that names those which stay."""
    end = time.monotonic() + most_s
    while staying := {pid: command_of(pid) for pid in processes if lives(pid)}:
        assert time.monotonic() < end, f"alive after {most_s} s: {staying}"
        time.sleep(0.1)


@dataclass
class Command:
    """A `paged-core serve --replicas` that is ready."""

    process: subprocess.Popen[str]
    url: str
    errors: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return str(response.read().decode())

    def complete(self, **body: Any) -> dict[str, Any]:
        data = json.dumps({"prompt": "hello", "max_tokens": 8, "temperature": 0, **body}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return dict(json.load(response))

    def samples(self, name: str) -> dict[str, float]:
        """Of a metric, by replica, other labels summed up."""
        found: dict[str, float] = {}
        for labels, value in re.findall(rf"^paged:{name}\{{(.*)\}} (\S+)$", self.get("/metrics"), re.MULTILINE):
            (replica,) = re.findall(r'replica="(\w+)"', labels)
            found[replica] = found.get(replica, 0.0) + float(value)
        return found

    def replicas(self) -> list[int]:
        """Processes of engines that live."""
        return [pid for pid in descendants(self.process.pid) if lives(pid) and b":engine" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def running_command(errors: Path, *arguments: str) -> Iterator[Command]:
    """The command, ready; when the block is left it must end well by SIGTERM, and leave no process behind."""
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [*PROGRAM, "serve", *arguments, "--port=0"],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
    assert process.stdout is not None
    children: set[int] = set()
    try:
        ready = process.stdout.readline()
        assert ready.startswith("ready: "), f"exit code {process.wait(60)}: {errors.read_text()}"
        yield Command(process, ready.split()[1], errors)
        children = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, errors.read_text()
        wait_until_gone(children)
    finally:
        children |= descendants(process.pid)
        process.kill()
        process.wait()
        process.stdout.close()
        for pid in filter(lives, children):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes(ray: None) -> Iterator[Any]:
    """A cluster of Ray on this machine: a head without processors, two logical nodes with two each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        import ray as ray_package
        from paged_exec_ray import session
        from ray.cluster_utils import Cluster

        session.leave()  # where another test of this process has entered one
        others = descendants(os.getpid())  # of other tests in this process: a compiler of grammars, say
        how = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **how})
        children: set[int] = set()
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
            yield cluster
        finally:
            children = descendants(os.getpid()) - others
            ray_package.shutdown()
            cluster.shutdown()
        wait_until_gone(children)
