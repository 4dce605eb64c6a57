"""Memory saved by sharing, as the paper counts it: blocks saved over blocks that would be held without sharing.

Both are summed over all steps of a run, so that a request counts by the blocks it holds and by how long it holds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING

from paged_core.bench.stub import Arrival, StubExecutor, drive, stub_engine, stub_facts
from paged_core.costs.choice import Server, find_cost
from paged_core.costs.devices import find_device
from paged_core.costs.models import MODELS
from paged_core.costs.work import work_of
from paged_core.engine.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.random import Generator

    from paged_core.api.batch import StepPlan
    from paged_core.api.executor import Executor
    from paged_core.api.params import SamplingParams
    from paged_core.engine.engine import Engine
    from paged_core.workload.lengths import Lengths

OPT_13B_BLOCKS = 983
"""Blocks of 16 tokens in the 12 GB that OPT-13B leaves on an A100 of 40 GB."""
_BLOCK_SIZE = 16


@dataclass(slots=True)
class Saving:
    """Block-steps held and saved so far."""

    held: int = 0
    saved: int = 0
    steps: int = 0
    requests: int = 0  # summed over steps
    slots: int = 0  # of blocks held, and those of them that are empty: summed over steps
    empty: int = 0

    def watch(self, engine: Engine) -> None:
        """Count the step that has just ended."""
        stats = engine.stats()
        if stats.blocks.used == 0:
            return
        self.held += stats.blocks.used
        self.saved += stats.blocks.saved
        self.slots += stats.blocks.used * engine.facts.block_size
        self.empty += stats.blocks.tail_waste_slots
        self.requests += stats.num_running
        self.steps += 1

    @property
    def share(self) -> float:
        """Saved over what would be held without sharing; not a number when nothing was held."""
        return self.saved / (self.held + self.saved) if self.steps else math.nan

    @property
    def waste(self) -> float:
        """Slots that are empty, in last blocks, over slots that hold a token; not a number when none does."""
        return self.empty / (self.slots - self.empty) if self.slots > self.empty else math.nan

    @property
    def mean_requests(self) -> float:
        """Running requests in a mean step."""
        return self.requests / self.steps if self.steps else math.nan


@dataclass(frozen=True, slots=True)
class Service:
    """Requests of given lengths that arrive as a Poisson process for `seconds` of virtual time."""

    lengths: Lengths
    per_second: float
    seconds: float

    def arrivals(self, params: Callable[[int], SamplingParams], random: Generator) -> Iterator[Arrival]:
        """Requests in the order of their coming; `params` makes the parameters for an output length."""
        at = 0.0
        for i in count():
            at += random.exponential(1 / self.per_second)
            prompt, output = map(int, self.lengths.pairs[i % len(self.lengths.pairs)])
            yield Arrival(at, [1] * prompt, params(output))


def service_saving(
    service: Service,
    params: Callable[[int], SamplingParams],
    random: Generator,
    executor: Executor | None = None,
    block_size: int = _BLOCK_SIZE,
) -> Saving:
    """Run `service` on an engine without a model, with the pool and the step times of OPT-13B.

    Memory is the only limit on how many run; another `block_size` leaves the pool as large as it is. The first tenth of
    the time is not counted: the pool fills up then.
    """
    clock, saving = VirtualClock(), Saving()
    blocks = OPT_13B_BLOCKS * _BLOCK_SIZE // block_size
    facts = stub_facts(blocks, max_model_len=2048, max_num_seqs=1024, block_size=block_size)
    engine = stub_engine(facts, executor or StubExecutor(_opt_13b_cost()), clock)

    def after_step() -> None:
        if clock.now() > service.seconds / 10:
            saving.watch(engine)

    arrivals = takewhile(lambda one: one.at < service.seconds, service.arrivals(params, random))
    drive(engine, clock, arrivals, after_step, service.seconds)
    engine.close()
    return saving


def _opt_13b_cost() -> Callable[[StepPlan], float]:
    """Seconds of a plan of OPT-13B on an A100 of 40 GB: published, and by the roofline for prompts beside decodes."""
    cost = find_cost("auto", Server("opt-13b", MODELS["opt-13b"], find_device("a100-40gb")))
    return lambda plan: cost.step_s(work_of(plan))


def prompts_saving(engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Saving:
    """Answer all prompts on an engine with a real model, and count every step from the first to the last."""
    saving = Saving()
    for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(f"saving-{i}", list(prompt), one)
    while engine.has_unfinished:
        engine.step()
        saving.watch(engine)
    return saving
