"""build_engine: an Engine from an executor and plugin names, for tests that need no model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paged_core.api.executor import ExecutorNeed
from paged_core.api.sampler import SamplerNeed
from paged_core.engine.assemble import wire
from paged_core.engine.clock import VirtualClock
from paged_core.engine.config import EngineConfig
from paged_core.model.spec import spec_from_hf
from paged_core.plugins import bootstrap
from paged_core.settings import Settings
from paged_core.testing.tiny import CONFIG
from paged_core.testing.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.api.clock import Clock
    from paged_core.api.executor import Executor
    from paged_core.api.sampler import Sampler
    from paged_core.api.scheduler import Scheduler
    from paged_core.engine.engine import Engine
    from paged_core.plugins import Plugins
    from paged_core.structured.compiler import GrammarCompiler


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
    jump_forward: bool = True
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
    grammars: GrammarCompiler | None = None,
) -> Engine:
    """An engine with audits on after every step and a virtual clock unless told otherwise.

    `grammars` saves many engines of one tokenizer from compiling everything anew; closing one of them closes it.
    """
    shape = shape or EngineShape()
    engine = wire(plugins or default_plugins(), _facts(shape), executor, shape.tokenizer, clock or VirtualClock())
    if wrap_scheduler is not None:
        engine._scheduler = wrap_scheduler(engine._scheduler)
    if grammars is not None:
        engine._compiling._compiler = grammars
    return engine


def executor_need(**changes: Any) -> ExecutorNeed:
    """What an executor of the tiny Llama is asked for, in float32 on a CPU; `model` is a name that leads nowhere."""
    need = ExecutorNeed(
        model="unused",
        spec=spec_from_hf(dict(CONFIG)),
        loader="load_hf",
        attn="attn_torch",
        sampler="sample_torch",
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        block_size=4,
        max_rows=8,
        max_len=64,
        token_budget=64,
        kv_memory_bytes=1 << 20,
        host_memory_bytes=1 << 19,
    )
    return replace(need, **changes)


def torch_sampler(shape: EngineShape, plugins: Plugins) -> Sampler:
    """sample_torch for an executor of such an engine."""
    tokenizer = shape.tokenizer
    need = SamplerNeed("cpu", tokenizer.vocab_size, 2 * shape.max_num_seqs, tokenizer.eos_token_ids)
    sampler: Sampler = plugins.create("sampler", "sample_torch", need)
    return sampler


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
        jump_forward=shape.jump_forward,
        plugins={"alloc": shape.alloc, "sched": shape.sched, "preempt": shape.preempt},
    )
