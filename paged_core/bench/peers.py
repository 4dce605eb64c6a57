"""`bench peers`: this engine and others that are installed here, in turns, each run a process of its own Python.

The driver in that process does the same work by the same clocks for everybody (`drivers/drive.py`), and says how much
of the machine somebody else used meanwhile; a run with busy neighbours is flagged, and left out if others are quiet.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.errors import ConfigError, PagedError
from paged_core.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DRIVE = Path(__file__).with_name("drivers") / "drive.py"
NOISE = 0.05
"""Share of the machine that others may use in a run that counts as quiet."""
RUN_LIMIT_S = 1800
WEIGHTS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
"""Settings of ours, by the precision of the weights."""
OURS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, settings) for name, settings in WEIGHTS.items()},
    "int8-u8": ("int8", {**WEIGHTS["int8"], "kv_dtype": "uint8"}),
}
"""Ways of ours to run: precision of the weights, and settings. int8-u8 keeps keys and values in 8 bits, as OpenVINO
does."""
REQUESTS, VOCABULARY = 64, 32_000
"""Of the workload that is made up when none is given: how many, and ids below what every model at hand knows."""
_SLOTS = 32
_TOLD = 300  # characters of an engine's last words
_EIGHT_BITS = re.compile(r"int8|q8", re.IGNORECASE)


class PeerError(PagedError):
    """An engine could not be measured; the message ends with what it said last."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine with one model: its Python, what its driver is told, and the precision of its weights."""

    name: str
    driver: str
    python: Path
    precision: str  # bf16 or int8
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def ours(way: str, settings: Mapping[str, Any]) -> Contestant:
    """This engine in one of the ways of `OURS`; `settings` are those of `LLM`."""
    precision, own = OURS[way]
    chosen = {"kv_memory": "1GiB", **settings, **own}
    return Contestant(f"paged-core {way}", "ours", Path(sys.executable), precision, settings=chosen)


def openvino(value: str) -> Contestant:
    """`PYTHON:EXPORTED_FOLDER`."""
    python, model = _pair(value, "--openvino PYTHON:FOLDER")
    precision = _precision(model)
    return Contestant(f"OpenVINO GenAI {precision}", "openvino", python, precision, str(model))


def llamacpp(value: str) -> Contestant:
    """`SERVER:FILE.gguf`. Its driver needs no package, so it runs in this Python."""
    server, model = _pair(value, "--llamacpp SERVER:FILE.gguf")
    precision = _precision(model)
    settings = {"server": str(server), "slots": _SLOTS}
    return Contestant(f"llama.cpp {precision}", "llamacpp", Path(sys.executable), precision, str(model), settings)


def vllm(value: str, threads: int, *, bound: bool) -> Contestant:
    """`PYTHON:FOLDER`, with its threads bound to the first cores or as it binds them itself."""
    python, model = _pair(value, "--vllm PYTHON:FOLDER")
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if bound:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    name = f"vLLM bf16, {'bound' if bound else 'default binding'}"
    return Contestant(name, "vllm", python, "bf16", str(model), environment=environment)


def check_workload(path: Path) -> Path:
    """The workload's file. ConfigError when there is none or it is something else."""
    from paged_core.bench.speed import read_workload

    if not read_workload(path).prompts:
        raise ConfigError(f"{path} has no requests")
    return path.absolute()


def write_workload(path: Path, count: int, seed: int) -> Path:
    """Make up `count` requests with the lengths of a chat service, the same for the same seed; returns `path`."""
    from paged_core.bench.speed import mixed

    made = mixed(count, VOCABULARY, seed)
    pairs = zip(made.prompts, made.outputs, strict=True)
    requests = [{"prompt": prompt, "out": output} for prompt, output in pairs]
    path.write_text(json.dumps({"seed": seed, "requests": requests}))
    return path


def _pair(value: str, form: str) -> tuple[Path, Path]:
    """Both halves of a value as absolute paths, links kept: a Python is known by the link in its environment."""
    left, _, right = value.partition(":")
    if not left or not right:
        raise ConfigError(f"{value!r} is not of the form {form}")
    missing = [half for half in (left, right) if not Path(half).exists()]
    if missing:
        raise ConfigError(f"{form}: there is no {' and no '.join(missing)}")
    return Path(left).absolute(), Path(right).absolute()


def _precision(model: Path) -> str:
    return "int8" if _EIGHT_BITS.search(model.name) else "bf16"


@dataclass(slots=True)
class Runs:
    """Results of one contestant (dicts as `drive.measured` makes them), and why it has none if it failed."""

    contestant: Contestant
    results: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    @property
    def quiet(self) -> list[dict[str, Any]]:
        """The runs in which others kept still; all of them when there is none."""
        return [result for result in self.results if noise(result) <= NOISE] or self.results

    @property
    def flagged(self) -> int:
        """How many runs had busy neighbours."""
        return sum(noise(result) > NOISE for result in self.results)

    @property
    def noise(self) -> float:
        """The most that others used in a run that counts."""
        return max(map(noise, self.quiet))

    def median(self, key: str) -> float:
        """Median of one figure over the runs that count."""
        return float(statistics.median(result[key] for result in self.quiet))

    def floor(self, key: str) -> float | None:
        """Median of the floor of one figure. None when the driver knows none."""
        floors = [result["floor"][key] for result in self.quiet if result["floor"] is not None]
        return statistics.median(floors) if floors else None


def noise(result: Mapping[str, Any]) -> float:
    """Share of the machine that others used in the worst phase of a run; 0 where the system does not tell."""
    return max(share or 0.0 for share in result["others"].values())


@dataclass(frozen=True, slots=True)
class Contest:
    """What every contestant is asked to do, with how many threads, and who hears of it."""

    workload: Path
    threads: int
    say: Callable[[str], None]

    def play(self, contestants: Sequence[Contestant], rounds: int) -> list[Runs]:
        """Everybody once a round, the order reversed every other round. Whoever fails is not asked again."""
        runs = [Runs(one) for one in contestants]
        for i in range(rounds):
            for one in runs[:: 1 if i % 2 == 0 else -1]:
                if one.failure is not None:
                    continue
                try:
                    one.results.append(self.run(one.contestant))
                except PeerError as error:
                    one.failure = str(error)
                    self.say(one.failure)
                    continue
                self.say(f"round {i + 1} of {rounds}, {one.contestant.name}: {_told(one.results[-1])}")
        return runs

    def run(self, contestant: Contestant) -> dict[str, Any]:
        """One run in a fresh process. PeerError when it fails or takes more than half an hour."""
        with tempfile.TemporaryDirectory(prefix="paged-peers-") as folder:
            order, result, log = (Path(folder) / name for name in ("order.json", "result.json", "log.txt"))
            order.write_text(json.dumps(self._order(contestant)))
            command = [str(contestant.python), str(DRIVE), str(order), str(result)]
            changes = {"OMP_NUM_THREADS": str(self.threads), **contestant.environment}
            code = _finish(command, changes, log)
            if code != 0 or not result.exists():
                last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
                raise PeerError(f"{contestant.name} failed with code {code}: {last[0][:_TOLD]}")
            content: dict[str, Any] = json.loads(result.read_text())
            return content

    def _order(self, contestant: Contestant) -> dict[str, Any]:
        settings = dict(contestant.settings)
        if contestant.driver == "ours":
            settings["threads"] = self.threads
        order = {"driver": contestant.driver, "model": contestant.model, "workload": str(self.workload)}
        return order | {"threads": self.threads, "settings": settings}


def _told(result: Mapping[str, Any]) -> str:
    flag = f", others used {noise(result):.0%}" if noise(result) > NOISE else ""
    return f"{result['mixed_s']:.1f} s, alone {result['decode_per_s']:.0f} tokens/s{flag}"


def _finish(command: Sequence[str], changes: Mapping[str, str], log: Path) -> int:
    """Exit code. Whatever the command started and left behind ends with it, also when we are interrupted."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=child_environment(changes), start_new_session=True
        )
    try:
        return process.wait(timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):  # all of it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
