"""`bench engine`: what the engine itself costs, with a model that costs nothing."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from paged_core.api.params import SamplingParams
from paged_core.bench.report import Column, Table
from paged_core.bench.stub import StubExecutor, stub_engine, stub_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNNING = (1, 4, 16, 64, 128, 256, 512, 1024)
GOAL_US = 3.0
_STEPS = 96  # six block boundaries of every sequence
_TOKENS = 280


def step_times(running: int, steps: int = _STEPS) -> list[float]:
    """Seconds of `steps` decode steps with `running` greedy sequences."""
    facts = stub_facts(running * 20, max_model_len=300, max_num_seqs=running, token_budget=running * 10)
    engine = stub_engine(facts, StubExecutor())
    params = SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)
    for i in range(running):
        engine.add_request(str(i), [1 + i % 200, 2, 3], params)
    for _ in range(5):
        engine.step()
    return [_timed(engine.step) for _ in range(steps)]


def _timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def overhead_table(sizes: Sequence[int], rounds: int, say: Callable[[str], None]) -> Table:
    """Time of a step and of a sequence in it, for several numbers of running sequences."""
    columns = (
        Column("running", "running", ","),
        Column("step_us", "mean step us", ".0f"),
        Column("median_us", "median step us", ".0f"),
        Column("sequence_us", "us / sequence", ".2f"),
    )
    table = Table("Engine time of a decode step, without a model", columns)
    for running in sizes:
        say(f"{running} running")
        runs = [step_times(running) for _ in range(rounds)]
        mean = statistics.median(statistics.mean(times) for times in runs)
        median = statistics.median(statistics.median(times) for times in runs)
        table.add(running, mean * 1e6, median * 1e6, mean * 1e6 / running)
    table.notes += [
        f"Scheduler, ledger, allocator, step plan, endings and outputs are real. Means over {_STEPS} steps, so that",
        f"block boundaries are in; the median of {rounds} runs. Goal: at most {GOAL_US:g} us a sequence from 128 on.",
    ]
    return table
