"""build_engine: an Engine from an executor and plugin names, for tests that need no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.preemption import PreemptionNeed
from paged_core.api.request import Rows
from paged_core.api.scheduler import SchedulerNeed
from paged_core.engine.clock import VirtualClock
from paged_core.engine.config import EngineConfig
from paged_core.engine.engine import Engine
from paged_core.engine.ledger import Ledger
from paged_core.plugins import bootstrap
from paged_core.settings import Settings
from paged_core.testing.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.api.clock import Clock
    from paged_core.api.executor import Executor
    from paged_core.api.scheduler import Scheduler
    from paged_core.plugins import Plugins


@dataclass(slots=True)
class EngineShape:
    """Sizes and choices of a test engine; the defaults are those of the project's test cases (pool P(64), block 4)."""

    num_blocks: int = 64
    num_host_blocks: int = 64
    block_size: int = 4
    max_model_len: int = 64
    max_num_seqs: int = 16
    token_budget: int = 64
    chunked_prefill: bool = True
    prefix_cache: bool = True
    alloc: str = "alloc_cow"
    sched: str = "sched_fcfs"
    preempt: str = "preempt_recompute"
    seed: int | None = 0
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)


def default_plugins() -> Plugins:
    """The installed plugins, untouched by environment or paged.toml choices of names."""
    return bootstrap(Settings.load())


def build_engine(
    executor: Executor,
    shape: EngineShape | None = None,
    *,
    plugins: Plugins | None = None,
    wrap_scheduler: Callable[[Scheduler], Scheduler] | None = None,
    clock: Clock | None = None,
) -> Engine:
    """An engine with audits on after every step and a virtual clock unless told otherwise."""
    shape = shape or EngineShape()
    plugins = plugins or default_plugins()
    max_rows = 2 * shape.max_num_seqs
    allocator = plugins.create("alloc", shape.alloc, _allocator_need(shape, max_rows))
    preemption_need = PreemptionNeed(shape.block_size, shape.block_size, shape.num_host_blocks)
    preemption = plugins.create("preempt", shape.preempt, preemption_need)
    scheduler: Scheduler = plugins.create("sched", shape.sched, _scheduler_need(shape))
    if wrap_scheduler is not None:
        scheduler = wrap_scheduler(scheduler)
    executor.start(shape.num_blocks, shape.num_host_blocks, allocator.tables)
    limits = (shape.token_budget, shape.max_num_seqs)
    ledger = Ledger(allocator, preemption, Rows(max_rows, shape.max_model_len), limits)
    return Engine(_facts(shape), shape.tokenizer, (ledger, scheduler), executor, clock or VirtualClock())


def _allocator_need(shape: EngineShape, max_rows: int) -> AllocatorNeed:
    return AllocatorNeed(
        num_blocks=shape.num_blocks,
        num_host_blocks=shape.num_host_blocks,
        block_size=shape.block_size,
        max_rows=max_rows,
        max_len=shape.max_model_len,
        prefix_cache=shape.prefix_cache,
    )


def _scheduler_need(shape: EngineShape) -> SchedulerNeed:
    return SchedulerNeed(
        token_budget=shape.token_budget,
        max_num_seqs=shape.max_num_seqs,
        max_len=shape.max_model_len,
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        chunked_prefill=shape.chunked_prefill,
    )


def _facts(shape: EngineShape) -> EngineConfig:
    return EngineConfig(
        model="test",
        architecture="none",
        vocab_size=shape.tokenizer.vocab_size,
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_host_blocks=shape.num_host_blocks,
        block_bytes=shape.block_size,
        max_model_len=shape.max_model_len,
        max_num_seqs=shape.max_num_seqs,
        token_budget=shape.token_budget,
        chunked_prefill=shape.chunked_prefill,
        prefix_cache=shape.prefix_cache,
        seed=shape.seed,
        audit=True,
        plugins={"alloc": shape.alloc, "sched": shape.sched, "preempt": shape.preempt},
    )
