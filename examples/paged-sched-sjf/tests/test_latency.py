"""What sched_sjf is for: a lower mean latency, measured on a simulated GPU with the lengths of conversations."""

from __future__ import annotations

import numpy as np

from paged_core.sim.measures import Measures, Window, measure
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.workload.lengths import arrivals_of, sharegpt


def served(sched: str, *, claimed_tokens: int | None = None, **settings: object) -> Measures:
    """150 requests at once, of which an A100 has room for thirty beside OPT-13B."""
    arrivals = arrivals_of(sharegpt(150, np.random.default_rng(1)), np.zeros(150))
    system = System(sched=sched, plugins={sched: settings} if settings else {})
    outcome = simulate(system, arrivals, claimed_tokens=claimed_tokens)
    return measure(outcome, window=Window.of(outcome, warmup=0.0))


def test_mean_latency_falls_and_nobody_is_forgotten() -> None:
    fcfs, sjf = served("sched_fcfs"), served("sched_sjf")
    assert fcfs.all_finished
    assert sjf.all_finished
    assert fcfs.e2e is not None
    assert sjf.e2e is not None
    assert sjf.e2e.mean < 0.8 * fcfs.e2e.mean


def test_without_the_oracle_it_goes_by_what_is_announced() -> None:
    """All announce the same, so that prompts alone decide: worse than the oracle, which does not care."""
    blind = served("sched_sjf", oracle=False, claimed_tokens=2048)
    told, again = served("sched_sjf"), served("sched_sjf", claimed_tokens=2048)
    assert told == again
    assert blind.e2e is not None
    assert told.e2e is not None
    assert told.e2e.mean < blind.e2e.mean
