"""Sweep: every system at every rate, or up to its capacity, on the same requests; in as many processes as asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paged_core.sim.capacity import search
from paged_core.sim.measures import WARMUP, Window, measure
from paged_core.sim.processes import fresh_processes
from paged_core.sim.simulation import simulate
from paged_core.workload.plan import Workload, plan_of
from paged_core.workload.traces import mean_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from paged_core.bench.serve.figures import Slo
    from paged_core.sim.capacity import Criterion
    from paged_core.sim.measures import Measures
    from paged_core.sim.system import System

    Progress = Callable[[float], None]

_FEWEST = 10
"""Requests due in the duration: a search tries no slower rate, at which soon none is due."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the systems are given, and how it is judged.

    workload        the requests; a seed draws the same ones at every rate, closer together or further apart
    sampling        `n`, `beam_width` and what else a request asks for
    claimed_tokens  the `max_tokens` that requests announce; None: what they will really need
    until           seconds of virtual time after which a run ends; None: when the last request has its answer
    warmup          share of the time of arrivals that figures leave out
    """

    workload: Workload
    sampling: Mapping[str, Any] = field(default_factory=dict)
    claimed_tokens: int | None = None
    until: float | None = None
    warmup: float = WARMUP
    slo: Slo | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One system at one rate: its figures, and what finding them took.

    rate           requests a second; a trace's own where none was asked for
    num_left_out   requests of a trace that are longer than the model's context
    reasons        why requests were rejected or cut, with their numbers in the whole run
    num_steps      of the engine, with `num_rows` sequences in them all together
    took_s         real seconds
    """

    name: str
    rate: float
    measures: Measures
    source: str
    num_left_out: int
    reasons: Mapping[str, int]
    num_steps: int
    num_rows: int
    took_s: float


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    system: System
    load: Load
    rate: float | None
    criterion: Criterion | None = None


def run(
    systems: Mapping[str, System],
    load: Load,
    rates: Sequence[float | None] = (None,),
    jobs: int = 1,
    progress: Progress = lambda done: None,
) -> list[Point]:
    """A point for every system (by its name) and rate, systems first; None takes a trace's own rate.

    `progress` is told how many of them are done; in one process, parts of one count. What a run raises is raised here,
    ConfigError among it.
    """
    tasks = [_Task(name, system, load, rate) for name, system in systems.items() for rate in rates]
    return _all(tasks, jobs, progress)


def run_to_capacity(
    systems: Mapping[str, System],
    load: Load,
    first: float,
    criterion: Criterion,
    jobs: int = 1,
    progress: Progress = lambda done: None,
) -> list[Point]:
    """The points at all rates that a search for each system's capacity tries, from `first` requests a second on.

    `progress` is told how many systems are done.
    """
    tasks = [_Task(name, system, load, first, criterion) for name, system in systems.items()]
    return _all(tasks, jobs, progress)


def _all(tasks: Sequence[_Task], jobs: int, progress: Progress) -> list[Point]:
    if min(jobs, len(tasks)) > 1:
        return list(_in_processes(tasks, min(jobs, len(tasks)), progress))
    return [point for i, task in enumerate(tasks) for point in _points(task, progress, i)]


def _in_processes(tasks: Sequence[_Task], jobs: int, progress: Progress) -> Iterator[Point]:
    with fresh_processes(jobs) as pool:
        for done, points in enumerate(pool.map(_points, tasks), start=1):
            progress(done)
            yield from points


def _points(task: _Task, progress: Progress = lambda done: None, done_before: int = 0) -> list[Point]:
    """The points of one task, by rate."""
    criterion = task.criterion
    if criterion is None or task.rate is None:
        return [_point(task, progress, done_before)]
    found: dict[float, Point] = {}

    def latency(rate: float) -> float:
        found[rate] = _point(replace(task, rate=rate), lambda done: None)
        return criterion.latency(found[rate].measures)

    duration_s = task.load.workload.duration_s
    search(latency, task.rate, criterion.limit_s, slowest=_FEWEST / duration_s if duration_s else 0.0)
    progress(done_before + 1)
    return [found[rate] for rate in sorted(found)]


def _point(task: _Task, progress: Progress, done_before: int = 0) -> Point:
    load, begun = task.load, time.perf_counter()
    plan = plan_of(load.workload, task.rate)
    outcome = simulate(
        task.system,
        plan.rows,
        sampling=load.sampling,
        claimed_tokens=load.claimed_tokens,
        until=load.until,
        seed=load.workload.seed,
        progress=lambda num_ended, now_s: progress(done_before + num_ended / len(plan.rows)),
    )
    progress(done_before + 1)
    return Point(
        name=task.name,
        rate=mean_rate(plan.rows) if task.rate is None else task.rate,
        measures=measure(outcome, load.slo, Window.of(outcome, load.warmup)),
        source=plan.source,
        num_left_out=plan.num_too_long,
        reasons=outcome.reasons,
        num_steps=len(outcome.steps.begin_s),
        num_rows=int(outcome.steps.num_seqs.sum()),
        took_s=time.perf_counter() - begun,
    )
