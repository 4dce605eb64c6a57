"""A model that costs nothing: a real engine around an executor that only answers and says how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepPlan, StepResult
from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.engine.assemble import wire
from paged_core.engine.clock import VirtualClock
from paged_core.engine.config import EngineConfig
from paged_core.engine.feed import feed
from paged_core.model.ids_only import IdsOnly
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from paged_core.api.params import SamplingParams
    from paged_core.engine.engine import Engine

VOCABULARY = 512
_TOKEN = 65


def _free(_: StepPlan) -> float:
    return 0.0


class StubTicket(Ticket):
    """A step and its answer."""

    __slots__ = ("result",)

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        super().__init__(plan)
        self.result = result


class StubExecutor(Executor):
    """Answers every draw with one and the same token; a step takes as many seconds as `cost` says: none by default."""

    def __init__(self, cost: Callable[[StepPlan], float] | None = None) -> None:
        self._cost = cost or _free

    def capacity(self) -> KVCapacity:
        """Not limited."""
        return KVCapacity(1 << 20, 1 << 20, 1)

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """There is no pool."""

    def submit(self, plan: StepPlan) -> Ticket:
        """Every draw at once."""
        draws = len(plan.sample_rows)
        tokens = np.full((draws, 1), _TOKEN, np.int32)
        return StubTicket(plan, StepResult(plan.step, tokens, np.ones(draws, np.int32), self._cost(plan)))

    def collect(self, ticket: Ticket) -> StepResult:
        """The answer of `submit`."""
        assert isinstance(ticket, StubTicket)
        return ticket.result

    def close(self) -> None:
        """There is nothing to release."""


def stub_facts(
    num_blocks: int, max_model_len: int, max_num_seqs: int, token_budget: int = 2560, block_size: int = 16
) -> EngineConfig:
    """Facts of an engine without a model: first-come-first-served, copy-on-write blocks, no prefix cache, no swap."""
    return EngineConfig(
        model="stub",
        architecture="none",
        vocab_size=VOCABULARY,
        device="none",
        dtype="none",
        kv_dtype="none",
        block_size=block_size,
        num_blocks=num_blocks,
        num_host_blocks=0,
        block_bytes=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        token_budget=max(token_budget, max_num_seqs),
        chunked_prefill=True,
        prefix_cache=False,
        seed=0,
        plugins={"alloc": "alloc_cow", "sched": "sched_fcfs", "preempt": "preempt_recompute"},
    )


def stub_engine(facts: EngineConfig, executor: Executor, clock: VirtualClock | None = None) -> Engine:
    """Everything but the model is real: scheduler, ledger, allocator, step plan, endings, outputs."""
    return wire(bootstrap(Settings.load()), facts, executor, IdsOnly(VOCABULARY), clock or VirtualClock())


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes (seconds), its prompt's ids and its parameters."""

    at: float
    prompt: Sequence[int]
    params: SamplingParams


def drive(
    engine: Engine, clock: VirtualClock, arrivals: Iterable[Arrival], after_step: Callable[[], None], until: float
) -> None:
    """Feed `arrivals` (in order of time) and step, until everything is answered or the clock reads `until`."""
    names = count()

    def add(arrival: Arrival) -> None:
        engine.add_request(str(next(names)), arrival.prompt, arrival.params)

    for _ in feed(engine, clock, ((arrival.at, arrival) for arrival in arrivals), add, until):
        after_step()
