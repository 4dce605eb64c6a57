"""A simulation decides as an engine with a real model does: step by step, when their steps take equally long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.api.params import SamplingParams
from paged_core.costs.choice import Server, find_cost
from paged_core.costs.devices import DEVICES
from paged_core.costs.models import MODELS
from paged_core.costs.transfers import Transfers
from paged_core.costs.work import work_of
from paged_core.engine.assemble import assemble, load_settings
from paged_core.engine.clock import VirtualClock
from paged_core.engine.feed import feed
from paged_core.sim.recorder import StepRecorder
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.testing.tiny import write_tiny_llama
from paged_core.workload.traces import Arrival

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.engine.engine import Engine
    from paged_core.sim.outcome import Steps

SYSTEM = System(
    model="tiny",
    device="l4",
    cost="roofline",
    sched="fcfs",
    alloc="cow",
    block_size=4,
    num_blocks=60,
    num_host_blocks=60,
    max_model_len=128,
    max_num_seqs=16,
    token_budget=64,
)


class Priced(Executor):
    """A real executor whose steps are said to take what the simulation's take, copies of blocks included."""

    def __init__(self, inner: Executor, server: Server, block_size: int) -> None:
        self._inner = inner
        self._cost = find_cost("roofline", server)
        chunks = 2 * server.spec.num_layers
        self._transfers = Transfers(block_size * server.token_bytes(), chunks, server.device.bytes_per_s)

    def capacity(self) -> KVCapacity:
        return self._inner.capacity()

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        self._inner.start(num_blocks, num_host_blocks, tables)

    def submit(self, plan: StepPlan) -> Ticket:
        return self._inner.submit(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        result = self._inner.collect(ticket)
        result.elapsed_s = self._cost.step_s(work_of(ticket.plan)) + self._transfers.copy_s(len(ticket.plan.copies))
        return result

    def close(self) -> None:
        self._inner.close()


def real_engine(folder: Path, system: System, clock: VirtualClock) -> Engine:
    settings = load_settings(
        model=str(folder),
        dtype="float32",
        threads=1,
        sched=system.sched,
        alloc=system.alloc,
        preempt=system.preempt,
        block_size=system.block_size,
        num_blocks=system.num_blocks,
        max_num_seqs=system.max_num_seqs,
        max_num_batched_tokens=system.token_budget,
        prefix_cache=system.prefix_cache,
        host_memory="4MiB",
    )
    engine = assemble(settings, clock=clock).engine
    server = Server("tiny", MODELS["tiny"], DEVICES["l4"])
    engine._executor = Priced(engine._executor, server, system.block_size)
    return engine


def real_steps(folder: Path, system: System, arrivals: list[Arrival], sampling: dict[str, int]) -> Steps:
    """The same requests through a real model, at the same prices and on the same kind of clock."""
    clock = VirtualClock()
    engine = real_engine(folder, system, clock)
    recorder = StepRecorder(clock, 2 * system.max_num_seqs, system.block_size)
    engine.observe(recorder)

    def add(i: int) -> None:
        one = arrivals[i]
        params = SamplingParams(max_tokens=one.output_tokens, ignore_eos=True, detokenize=False, **sampling)
        engine.add_request(str(i), [7] * one.prompt_tokens, params, true_output_len=one.output_tokens)

    for _ in feed(engine, clock, ((one.at_s, i) for i, one in enumerate(arrivals)), add, 1e9):
        pass
    engine.close()
    return recorder.steps()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("twin") / "tiny")


@pytest.mark.parametrize("change", [{}, {"sched": "prefill_first"}, {"num_blocks": 300}], ids=str)
@pytest.mark.parametrize("sampling", [{}, {"n": 3}], ids=str)
def test_steps_are_those_of_an_engine_with_a_model(
    folder: Path, change: dict[str, object], sampling: dict[str, int]
) -> None:
    """Every column of every step: who runs, waits and was preempted, what is computed, what the pool holds, when."""
    system = replace(SYSTEM, preempt="recompute", **change)  # type: ignore[arg-type]
    random = np.random.default_rng(1)
    lengths = random.integers(3, 40, (25, 2)).tolist()
    arrivals = [Arrival(i * 1e-3, prompt, output) for i, (prompt, output) in enumerate(lengths)]
    real = real_steps(folder, system, arrivals, sampling)
    simulated = simulate(system, arrivals, sampling=sampling).steps
    assert len(real) > 50
    for name in real.__dataclass_fields__:
        ours, theirs = getattr(simulated, name), getattr(real, name)
        assert np.array_equal(ours, theirs), f"{name} parts at step {np.flatnonzero(ours != theirs)[:1]}"
    assert (real.num_preempted.max() > 0) == (system.num_blocks == 60), "the small pool was meant to run short"


def test_deadlines_are_on_the_virtual_clock() -> None:
    """A request whose deadline passes during a step ends before the next one; the clock decides, not this machine."""
    clock = VirtualClock()
    engine = SYSTEM.build(clock)
    params = SamplingParams(max_tokens=100, detokenize=False)
    engine.add_request("late", [1] * 10, params, deadline=0.0)
    engine.add_request("soon", [1] * 10, params, deadline=0.005)
    engine.add_request("free", [1] * 10, replace(params, max_tokens=20))
    ended = {}
    while engine.has_unfinished:
        before = clock.now()
        for output in engine.step():
            ended[output.request_id] = (before, output.outputs[0].finish_reason)
    assert ended["late"] == (0.0, "abort")
    when, why = ended["soon"]
    assert (why, when >= 0.005) == ("abort", True)
    assert when < 0.01
    assert ended["free"][1] == "length"
    engine.check()
    engine.close()
