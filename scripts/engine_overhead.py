"""Engine time per running sequence and step, with an executor that costs nothing.

    python scripts/engine_overhead.py

Everything but the model is real: scheduler, ledger, allocator, step plan, endings, outputs. Prints
means over 96 steps, so that block boundaries (every 16th step of a sequence) are in.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepPlan, StepResult
from paged_core.api.params import SamplingParams
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.scripted import ScriptedExecutor
from paged_core.testing.shadow import ShadowTicket

if TYPE_CHECKING:
    from paged_core.api.executor import Ticket

STEPS = 96


class Stub(ScriptedExecutor):
    """Answers every draw with the same token."""

    def submit(self, plan: StepPlan) -> Ticket:
        """One token a draw, at once."""
        draws = len(plan.sample_rows)
        tokens = np.full((draws, 1), 65, np.int32)
        return ShadowTicket(plan, StepResult(plan.step, tokens, np.ones(draws, np.int32), 0.001))


def measure(running: int) -> float:
    """Mean microseconds of one decode step with `running` sequences."""
    shape = EngineShape(
        num_blocks=running * 20, block_size=16, max_model_len=300, max_num_seqs=running, token_budget=running * 10
    )
    engine = build_engine(Stub(()), shape)
    engine.facts = dataclasses.replace(engine.facts, audit=False)
    params = SamplingParams(temperature=0, max_tokens=280, ignore_eos=True)
    for i in range(running):
        engine.add_request(str(i), [1 + i % 200, 2, 3], params)
    for _ in range(5):
        engine.step()
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    return statistics.mean(times) * 1e6


if __name__ == "__main__":
    for running in (16, 128, 512, 1024):
        step = measure(running)
        print(f"{running:5d} running  {step:7.0f} us a step  {step / running:5.2f} us a sequence")
