"""`bench startup`: what a person waits for before the first token, in fresh processes.

A fresh process of the command line is started and watched from outside: `ready` is what it tells of its own phases
(`--timing`), the first token is the first byte of its answer. The cache of compiled kernels is a temporary folder,
empty for a cold start and filled by it for the warm ones; pulled models are linked into it, the user's own cache is
left alone.
"""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paged_core.bench.report import Column, Table
from paged_core.bench.timing import Measurement
from paged_core.errors import PagedError
from paged_core.settings import cache_dir, child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GOAL_FIRST_S, GOAL_HELP_S = 3.0, 0.3
PROMPT = "Hello"
_CLI = "import sys; from paged_core.cli import main; main(sys.argv[1:])"
_PHASE = re.compile(r"^  (\S.*?) {2,}(\d+\.\d+) s$", re.MULTILINE)
_AFTER_READY = ("first token", "process start to first token")


@dataclass(frozen=True, slots=True)
class Start:
    """One process. Seconds on the wall from its creation to the first byte on standard output, and to its end; of
    processor time in all its threads; and of its own phases, by name."""

    first_byte_s: float
    end_s: float
    cpu_s: float
    phases: Mapping[str, float]

    @property
    def ready_s(self) -> float:
        """Until the engine could take a request, by the process's own account."""
        return sum(seconds for name, seconds in self.phases.items() if name not in _AFTER_READY)


def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Run the command line in a fresh interpreter. PagedError with its last words when it fails."""
    before = _children_cpu_s()
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", _CLI, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(environment),
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            first_byte = time.perf_counter() - begin
            process.stdout.read()
        end = time.perf_counter() - begin
        errors.seek(0)
        told = errors.read()
    if process.returncode != 0:
        last = told.strip().splitlines()[-1:] or ["it said nothing"]
        raise PagedError(f"paged-core {' '.join(arguments)} failed with code {process.returncode}: {last[0]}")
    return Start(first_byte, end, _children_cpu_s() - before, phases_of(told))


def phases_of(told: str) -> dict[str, float]:
    """Seconds by phase, from what `--timing` prints."""
    _, _, table = told.partition("start-up:\n")
    return {name: float(seconds) for name, seconds in _PHASE.findall(table)}


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(slots=True)
class Starts:
    """Starts of three kinds, several of each."""

    help: list[Start]
    cold: list[Start]
    warm: list[Start]


def observe(settings: Sequence[str], rounds: int, cold_rounds: int, say: Callable[[str], None]) -> Starts:
    """Start processes with the flags `settings`: `cold_rounds` from an empty kernel cache, `rounds` of the others."""
    say("paged-core --help")
    launch(["--help"], {})
    found = Starts([launch(["--help"], {}) for _ in range(rounds)], [], [])
    answer = ["run", PROMPT, "--raw", "--max-tokens", "1", "--ignore-eos", "--timing", *settings]
    with tempfile.TemporaryDirectory(prefix="paged-core-") as folder:
        for i in range(cold_rounds):
            say(f"cold start {i + 1} of {cold_rounds}")
            cache = {"PAGED_CACHE_DIR": str(_empty_cache(Path(folder) / str(i)))}
            found.cold.append(launch(answer, cache))
        for i in range(rounds):
            say(f"warm start {i + 1} of {rounds}")
            found.warm.append(launch(answer, cache))
    return found


def _empty_cache(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    models = cache_dir() / "models"
    if models.is_dir():
        (folder / "models").symlink_to(models)
    return folder


def startup_table(starts: Starts) -> Table:
    """Medians of what was waited for."""
    columns = (
        Column("what", "what"),
        Column("wall_s", "wall s", ".2f"),
        Column("least_s", "least s", ".2f"),
        Column("cpu_s", "processor s", ".2f"),
        Column("spread", "spread", ".0%"),
        Column("rounds", "rounds"),
        Column("goal_s", "goal s", ".1f"),
    )
    table = Table("From the start of a process", columns)
    rows: list[tuple[str, list[Start], Callable[[Start], float], float | None]] = [
        ("paged-core --help, to its end", starts.help, lambda start: start.end_s, GOAL_HELP_S),
        ("engine ready, warm kernel cache", starts.warm, lambda start: start.ready_s, None),
        ("first token, warm kernel cache", starts.warm, lambda start: start.first_byte_s, GOAL_FIRST_S),
        ("engine ready, cold kernel cache", starts.cold, lambda start: start.ready_s, None),
        ("first token, cold kernel cache", starts.cold, lambda start: start.first_byte_s, None),
    ]
    for what, some, seconds, goal in rows:
        wall = Measurement(tuple(seconds(start) for start in some))
        cpu = statistics.median(start.cpu_s for start in some) if "ready" not in what else None
        table.add(what, wall.median, wall.best, cpu, wall.spread, len(some), goal)
    table.notes += [
        "Medians of fresh processes; files are in the system's cache. Processor time is that of the whole process, all",
        "threads, to its end. First token: one of a bare prompt, when it appears on standard output.",
    ]
    return table


def phases_table(starts: Starts) -> Table:
    """What `--timing` prints, medians by phase."""
    table = Table(
        "Phases of a start, as --timing tells them",
        (Column("phase", "phase"), Column("warm_s", "warm s", ".3f"), Column("cold_s", "cold s", ".3f")),
    )
    for name in starts.warm[0].phases:
        medians = (statistics.median(start.phases[name] for start in some) for some in (starts.warm, starts.cold))
        table.add(name, *medians)
    return table
