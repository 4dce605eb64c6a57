"""A model that costs nothing: a real engine around an executor that only answers and says how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.batch import StepPlan, StepResult
from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.engine.assemble import wire
from paged_core.engine.clock import VirtualClock
from paged_core.engine.config import EngineConfig
from paged_core.errors import RequestError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from paged_core.api.params import SamplingParams
    from paged_core.engine.engine import Engine

VOCABULARY = 512
_TOKEN = 65


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a step: `base` + `prompt` a prompt token + `context` a token attended + `sequence` a sequence."""

    base: float = 0.0
    prompt: float = 0.0
    context: float = 0.0
    sequence: float = 0.0

    def __call__(self, plan: StepPlan) -> float:
        """Seconds of `plan`."""
        decoding = np.diff(plan.query_start) == 1
        prompt_tokens = plan.num_tokens - int(decoding.sum())
        context = int(plan.seq_lens[decoding].sum())
        return (
            self.base + self.prompt * prompt_tokens + self.context * context + self.sequence * int(decoding.sum())
        ) / 1000


OPT_13B_A100_40GB = StepCost(base=30.8, prompt=0.1405, context=7.8e-4, sequence=0.08)
"""Published fit for OPT-13B on an A100 of 80 GB; what memory bandwidth limits is scaled to 40 GB (x 1.31)."""


class StubTicket(Ticket):
    """A step and its answer."""

    __slots__ = ("result",)

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        super().__init__(plan)
        self.result = result


class StubExecutor(Executor):
    """Answers every draw with one and the same token; a step takes as many seconds as `cost` says."""

    def __init__(self, cost: Callable[[StepPlan], float] | None = None) -> None:
        self._cost = cost or StepCost()

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


class IdsOnly:
    """A tokenizer for requests that bring ids and want no text."""

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, vocab_size: int = VOCABULARY) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """RequestError: there is no text here."""
        raise RequestError("this model knows no text; give token ids", "prompt")

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The ids, spelled out."""
        return " ".join(map(str, token_ids))

    def token_text(self, token_id: int) -> str:
        """The id, spelled out."""
        return str(token_id)

    def is_special(self, token_id: int) -> bool:
        """None is."""
        return False

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """RequestError: there is no template here."""
        raise RequestError("this model has no chat template", "messages")


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
    return wire(bootstrap(Settings.load()), facts, executor, IdsOnly(), clock or VirtualClock())


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
    coming = iter(arrivals)
    pending, count = next(coming, None), 0
    while clock.now() < until:
        while pending is not None and pending.at <= clock.now():
            engine.add_request(str(count), pending.prompt, pending.params)
            pending, count = next(coming, None), count + 1
        if engine.has_unfinished:
            engine.step()
            after_step()
        elif pending is None:
            return
        else:
            clock.sleep_until(pending.at)
