"""Leaderboard: every scheduler there is, on the same requests, trace by trace.

A board is a load and the system that serves it, fixed here so that figures can be compared and found again. Load is set
where sched_fcfs is near saturation: below, policies hardly differ, and far above nobody has a latency.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paged_core.bench.report import Column, Table
from paged_core.bench.serve.figures import Slo
from paged_core.costs.models import find_model
from paged_core.errors import ConfigError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings
from paged_core.sim.sweep import Load, run
from paged_core.sim.system import System
from paged_core.sim.tables import quantile
from paged_core.workload.plan import Workload, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paged_core.plugins import Plugins, Record
    from paged_core.sim.sweep import Point

    Progress = Callable[[float], None]

_PATIENCE_S = 300.0
"""After the last arrival a run ends, whoever is still there."""


@dataclass(frozen=True, slots=True)
class Board:
    """One load and the system that serves it.

    trace   its file's name in the folder of traces; None: `load.workload` draws lengths
    rate    requests a second; a trace's time is stretched to it
    about   what there is to know of the load, in a sentence or two
    """

    name: str
    title: str
    about: str
    system: System
    load: Load
    rate: float
    trace: str | None = None

    def load_from(self, folder: Path | None) -> Load:
        """The load with its trace found in `folder`. ConfigError when it is not there."""
        longest = self.system.max_model_len or find_model(self.system.model).max_position
        workload = replace(self.load.workload, most_tokens=longest)
        if self.trace is not None:
            if folder is None or not (folder / self.trace).is_file():
                where = "no folder of traces is given" if folder is None else f"{folder} does not hold it"
                raise ConfigError(f"the board {self.name} needs the trace {self.trace}: {where}")
            workload = replace(workload, trace=folder / self.trace)
        return replace(self.load, workload=workload)


_MANY = 1_000_000  # requests: a slice of time says how many
_LLAMA = System(model="llama-3-8b", device="a100-40gb", cost="roofline", token_budget=1024)

BOARDS: tuple[Board, ...] = (
    Board(
        "sharegpt",
        "ShareGPT-like conversations",
        "600 requests with lengths like those of ShareGPT in the PagedAttention paper, Poisson arrivals.",
        System(model="opt-13b", device="a100-40gb", cost="roofline", token_budget=1024),
        Load(Workload(num_requests=600), claimed_tokens=1024, slo=Slo({"ttft": 1000, "tpot": 60})),
        rate=2.2,
    ),
    Board(
        "azure-conv",
        "Azure 2023, conversation",
        "The first 300 seconds of the trace (Patel et al., Splitwise, ISCA 2024): near-Poisson arrivals.",
        _LLAMA,
        Load(Workload(num_requests=_MANY, slice_s=(0, 300)), claimed_tokens=1024, slo=Slo({"ttft": 2000, "tpot": 100})),
        rate=5.2,
        trace="azure2023_conv.csv",
    ),
    Board(
        "azure-code",
        "Azure 2023, code",
        "The first 900 seconds of the trace: long prompts, short answers, very bursty arrivals.",
        _LLAMA,
        Load(Workload(num_requests=_MANY, slice_s=(0, 900)), claimed_tokens=256, slo=Slo({"ttft": 5000, "tpot": 100})),
        rate=1.5,
        trace="azure2023_code.csv",
    ),
    Board(
        "mooncake",
        "Mooncake, conversation",
        "The first 600 seconds of the trace (Qin et al., FAST 2025), whose prompts begin alike; all lengths divided by "
        "16 to fit the model's context. With prefix cache.",
        replace(_LLAMA, prefix_cache=True),
        Load(
            Workload(num_requests=_MANY, slice_s=(0, 600), length_factor=1 / 16),
            claimed_tokens=128,
            slo=Slo({"ttft": 2000, "tpot": 100}),
        ),
        rate=13.0,
        trace="mooncake_conversation.jsonl",
    ),
)
"""The boards, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A scheduler that takes part: its name, whether it cuts prompts, and which distribution or module brought it."""

    name: str
    chunked: bool
    source: str


def boards_named(names: Sequence[str]) -> list[Board]:
    """The boards of those names; all without any. ConfigError for an unknown one."""
    known = {board.name: board for board in BOARDS}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no board {unknown[0]!r}: {', '.join(known)}")
    return [known[name] for name in names] or list(BOARDS)


def entrants(plugin_modules: Sequence[str] = (), names: Sequence[str] = ()) -> list[Entrant]:
    """Every scheduler that is installed or named as a module, or those of these names. ConfigError: there is none."""
    registry: Plugins = bootstrap(Settings.load(plugin_modules=tuple(plugin_modules)))
    found = [
        Entrant(record.name, "chunked_prefill" in record.provider.capabilities, _source(record))
        for record in registry.of_kind("sched")
    ]
    if not names:
        return found
    wanted = {name if name.startswith("sched_") else f"sched_{name}" for name in names}
    if missing := wanted - {one.name for one in found}:
        raise ConfigError(f"there is no scheduler {min(missing)}: {', '.join(one.name for one in found)}")
    return [one for one in found if one.name in wanted]


def play(
    board: Board,
    all_entrants: Sequence[Entrant],
    folder: Path | None,
    plugin_modules: Sequence[str] = (),
    jobs: int = 1,
    progress: Progress = lambda done: None,
) -> Table:
    """The board's table, best goodput first. `progress` is told how many entrants are done."""
    load = board.load_from(folder)
    systems = {one.name: _system_of(board, one, plugin_modules) for one in all_entrants}
    points = run(systems, replace(load, until=_until(board, load)), (board.rate,), jobs, progress)
    sources = {one.name: one.source for one in all_entrants}
    table = Table(board.title, _COLUMNS)
    for point in sorted(points, key=_merit):
        table.add(*_row(point, sources[point.name]))
    table.notes += _notes(board, points)
    return table


def conditions(board: Board) -> str:
    """What a reader needs to know of a board, in one sentence each."""
    system, slo = board.system, board.load.slo
    assert slo is not None
    limits = ", ".join(f"{name.upper()} {limit:g} ms" for name, limit in slo.limits_ms.items())
    return (
        f"{board.about} {board.rate:g} requests a second; every request announces {board.load.claimed_tokens} tokens "
        f"(or its true length, where that is more). {system.model} on {system.num_devices} x {system.device}, "
        f"{system.token_budget:,} tokens and {system.max_num_seqs} sequences a step. SLO: {limits}."
    )


def _source(record: Record) -> str:
    """The distribution; a module that was named stands for none."""
    return "--plugin" if record.version == "-" else record.dist


def _system_of(board: Board, entrant: Entrant, plugin_modules: Sequence[str]) -> System:
    """Who does not cut prompts has a token budget for whole ones, as the engine itself would set it."""
    system = replace(board.system, sched=entrant.name, plugin_modules=tuple(plugin_modules))
    if entrant.chunked:
        return system
    longest = system.max_model_len or find_model(system.model).max_position
    return replace(system, chunked_prefill=False, token_budget=max(system.token_budget, longest))


def _until(board: Board, load: Load) -> float:
    return plan_of(load.workload, board.rate).rows[-1].at_s + _PATIENCE_S


_COLUMNS = (
    Column("sched", "scheduler"),
    Column("from", "from"),
    Column("goodput_per_s", "goodput/s", ".3f"),
    Column("good_share", "in SLO", ".1%"),
    Column("requests_per_s", "requests/s", ".3f"),
    Column("ttft_p50_s", "TTFT p50", ".2f"),
    Column("ttft_p99_s", "p99", ".2f"),
    Column("tpot_p50_s", "TPOT p50", ".3f"),
    Column("tpot_p99_s", "p99", ".3f"),
    Column("itl_p99_s", "ITL p99", ".3f"),
    Column("normalized_s", "s/token", ".3f"),
    Column("batch", "batch", ".1f"),
    Column("preemptions", "preempted", ","),
    Column("num_unfinished", "unfinished", ","),
)


def _merit(point: Point) -> tuple[float, float, str]:
    """Goodput and latency as they are printed, then the name: the order does not hang on a last digit."""
    return -round(point.measures.goodput_per_s or 0.0, 3), round(point.measures.latency, 3), point.name


def _row(point: Point, source: str) -> list[str | int | float | None]:
    of = point.measures
    return [
        point.name.removeprefix("sched_"),
        source,
        of.goodput_per_s,
        of.good_share,
        of.requests_per_s,
        *(quantile(times, q) for times in (of.ttft, of.tpot) for q in ("p50", "p99")),
        quantile(of.itl, "p99"),
        quantile(of.normalized, "mean"),
        of.batch,
        of.preemptions,
        of.num_requests - of.num_finished,
    ]


def _notes(board: Board, points: Sequence[Point]) -> list[str]:
    notes = []
    if left_out := max((point.num_left_out for point in points), default=0):
        notes.append(f"{left_out} requests longer than the model's context are left out.")
    for point in points:
        if point.reasons:
            why = ", ".join(f"{num} {reason}" for reason, num in point.reasons.items())
            notes.append(f"{point.name.removeprefix('sched_')}: {why}.")
    if any(not point.measures.all_finished for point in points):
        notes.append(
            f"Unfinished: {_PATIENCE_S:g} seconds after the last arrival. They count with the time they have waited."
        )
    return notes
