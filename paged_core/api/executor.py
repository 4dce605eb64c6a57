"""Executors: where the model runs. One control message a step; logits never cross this contract.

    create -> capacity -> start(num_blocks, num_host_blocks, tables) -> [submit -> collect]* -> close

The executor creates attention, sampler and loader by name and loads the weights; a simulated one takes the ModelSpec
and does neither.

One with `tensor_parallel` takes a need with a `world_size` of any size that cuts the model evenly (1 too) and refuses
the others with the sizes that work. Ranks keep the KV heads they compute, ceil(num_kv_heads / world_size) of them, and
draw the tokens that one process draws.

Capabilities: simulated, tensor_parallel.

A simulated one answers every draw with some token: an end token at the draw that reaches `RowStart.true_output_len`,
and none otherwise; equal plans get equal answers and the same `elapsed_s`, which is what the device would have taken.
A draw whose parameters prescribe tokens fails, as nothing weighs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.model import ModelSpec
    from paged_core.api.params import SamplingParams
    from paged_core.api.sampler import LogprobsMode


@dataclass(frozen=True, slots=True)
class ExecutorNeed:
    """Everything the execution side needs; no autos left. Bytes and tokens; `threads` 0 = the library's default.

    `logprobs_mode`: what the sampler reports, as in `SamplerNeed`. `quantization`: none, or int8 for the weights of
    the linear layers. `profile`: time the parts of every step, for `Executor.spans`.
    `attn_required`: capabilities of the chosen attention backend that the executor uses (`fused_rope`, `graphs`).
    `max_num_seqs`: sequences of the largest step of decodes, 0 = max_rows; `enforce_eager`: capture no graphs of them.
    `world_size`: ranks that share the model. Memory, for both pools, and threads are those of all ranks together.
    """

    model: str
    spec: ModelSpec
    loader: str
    attn: str
    sampler: str
    device: str
    dtype: str
    kv_dtype: str
    block_size: int
    max_rows: int
    max_len: int
    token_budget: int
    kv_memory_bytes: int
    host_memory_bytes: int
    threads: int = 0
    world_size: int = 1
    eos_token_ids: tuple[int, ...] = ()
    attn_required: frozenset[str] = frozenset()
    cache_dir: str | None = None
    required: frozenset[str] = frozenset()
    logprobs_mode: LogprobsMode = "raw_logprobs"
    quantization: str = "none"
    profile: bool = False
    max_num_seqs: int = 0
    enforce_eager: bool = False


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """Blocks that fit into the memory the need allows, and bytes of one block over all layers.

    With `num_ranks` above 1 these are bytes of all ranks together, each of which keeps an equal part of every block;
    the numbers of blocks are those of the rank with the least room.
    """

    num_blocks: int
    num_host_blocks: int
    block_bytes: int
    num_ranks: int = 1


class Span(NamedTuple):
    """`name` ran from `begin` for `duration`, both in nanoseconds of `time.perf_counter_ns` where it ran."""

    name: str
    begin: int
    duration: int


class Ticket:
    """A step that was submitted. Executors subclass it to carry what they need."""

    __slots__ = ("plan",)

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class Executor(ABC):
    """Runs steps in the order of submission. At most `max_in_flight` tickets are open: 1, or 2 where it says so.

    With 2 the engine submits a step while the one before still runs, and collects in the order of submission. Then
      * a step's moves and writes happen after those of the step before
      * a token of the new step may be a draw of the one before, known to the executor alone: `StepPlan.token_source`.
        Where that draw failed any token does; the engine drops what comes of it
      * sampler state follows the order of submission: rows end and start, and draws are counted, plan by plan
      * a draw with a step behind it gives one token or fails; requests with logits processors, beam search or moves of
        blocks in the step have nothing behind them
    The other side of it, the engine's: no block that a step in flight uses is freed, and hence none is written by a
    later step for somebody else, before that step was collected.
    """

    max_in_flight: int = 1

    @abstractmethod
    def capacity(self) -> KVCapacity:
        """How many blocks fit. Loads no weights."""

    @abstractmethod
    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Load weights, allocate both pools. `tables` is the allocator's array; a remote executor mirrors it."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> Ticket:
        """Begin a step: moves, forward pass, sampling. The plan's arrays stay unchanged until it was collected.

        `tables` does not: the next step's plan changes it. What the step needs of it is read before this returns.
        Raises EngineDeadError after `close` and before `start`.
        """

    @abstractmethod
    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for a step. Raises EngineDeadError, cause chained, when the place where it ran is gone."""

    def check(self, params: SamplingParams) -> None:
        """Raise RequestError when requests with these parameters cannot run where steps run, say for an object that
        cannot be sent there. Asked when a request is added; the default takes all."""

    def processes(self) -> tuple[int, ...]:
        """Ids of the processes of this machine, besides this one, in which steps run; by default none. Between `start`
        and `close` they live, and afterwards none of them is left."""
        return ()

    def check_health(self) -> None:
        """Raise EngineDeadError when the place where steps run is gone. Asked every few seconds while no step runs, so
        it must be quick; the default knows of no such place."""

    def spans(self) -> list[Span]:
        """What was timed since the last call, if the need asked for a profile; the default times nothing."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Release memory and processes; steps in flight are dropped. Idempotent, and harmless before `start`."""
