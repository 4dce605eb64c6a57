"""Reproduction: every run that the chosen claims need, once each, in as many processes as asked for."""

from __future__ import annotations

from concurrent.futures import as_completed
from typing import TYPE_CHECKING

from paged_core.sim.processes import fresh_processes
from paged_core.sim.reproduce.found import Found
from paged_core.sim.reproduce.tasks import Curve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paged_core.sim.reproduce.claims.claim import Claim
    from paged_core.sim.reproduce.measure import Measured
    from paged_core.sim.reproduce.tasks import Size, Task

    Progress = Callable[[int, int, str], None]


def reproduce(claims: Sequence[Claim], size: Size, jobs: int, progress: Progress) -> Found:
    """Run what `claims` need. Runs that several need are made once; nothing depends on `jobs` but the time it takes.

    `progress` hears how many of how many tasks are done, and which was the last. What a run raises is raised here.
    """
    tasks = {task.key: task for claim in claims for task in claim.tasks(size)}
    ordered = sorted(tasks.values(), key=_expected_work, reverse=True)  # long ones first: the end is not one process
    runs: dict[str, list[Measured]] = {}
    for key, found in _results(ordered, size, min(jobs, len(ordered))):
        runs[key] = found
        progress(len(runs), len(ordered), key)
    return Found(size, tuple(claim.id for claim in claims), runs)


def _expected_work(task: Task) -> float:
    """Any number that grows with the time a task takes: rows of steps, roughly."""
    setup = task.setup
    weight = 1.0 if setup.lengths == "sharegpt" else 3.0
    weight *= {"basic": 1, "sample": 2, "beam": 8}[setup.mode] * (2 if setup.model == "opt-175b" else 1)
    return weight * (6 if isinstance(task, Curve) else 3)


def _results(tasks: Sequence[Task], size: Size, jobs: int) -> Iterator[tuple[str, list[Measured]]]:
    if jobs <= 1:
        yield from (_run(task, size) for task in tasks)
        return
    with fresh_processes(jobs) as pool:
        for future in as_completed([pool.submit(_run, task, size) for task in tasks]):
            yield future.result()


def _run(task: Task, size: Size) -> tuple[str, list[Measured]]:
    return task.key, task.run(size)
