"""Assemble: from what the user wants (Settings) to an Engine. The only place where parts are wired together."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.attention import AttentionNeed
from paged_core.api.executor import ExecutorNeed, KVCapacity
from paged_core.api.loader import LoaderNeed
from paged_core.api.preemption import PreemptionNeed
from paged_core.api.request import Rows
from paged_core.api.sampler import SamplerNeed
from paged_core.api.scheduler import SchedulerNeed
from paged_core.engine.clock import RealClock
from paged_core.engine.config import EngineConfig
from paged_core.engine.engine import Engine
from paged_core.engine.hardware import choose_device, choose_dtype, choose_threads, gpu_memory, kv_bytes
from paged_core.engine.ledger import Ledger
from paged_core.engine.profile import Profile
from paged_core.errors import ConfigError
from paged_core.model.parallel.shard import Shard, local_spec
from paged_core.plugins import bootstrap
from paged_core.settings import Settings, cache_dir

if TYPE_CHECKING:
    from paged_core.api.clock import Clock
    from paged_core.api.executor import Executor
    from paged_core.api.loader import Loader, Tokenizer
    from paged_core.api.model import ModelSpec
    from paged_core.api.provider import Provider
    from paged_core.plugins import Plugins

news = logging.getLogger("paged_core.news")
"""What a person at a terminal should know while waiting (a download, a first compilation). The commands show it."""

_BUDGET = {"cpu": 512, "cuda": 8192}  # tokens a step: a CPU step of 512 tokens keeps streams moving (case S07)


def load_settings(**flags: Any) -> Settings:
    """User intent from keywords over environment over paged.toml over defaults. None means "not given"."""
    return Settings.load(**flags)


@dataclass(frozen=True, slots=True)
class Model:
    """A located model: its files are local, nothing heavy is loaded."""

    name: str
    loader_name: str
    loader: Loader
    spec: ModelSpec
    tokenizer: Tokenizer


class Stopwatch:
    """Seconds by phase of start-up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine that is ready to run, what it is made of, and the seconds each phase of start-up took."""

    engine: Engine
    executor: Executor
    spec: ModelSpec
    plugins: Plugins
    timings: dict[str, float]
    profile: Profile | None = None

    def close(self) -> None:
        """Write the profile if there is one, release the model, let plugins release what they hold. Idempotent."""
        try:
            if self.profile is not None:
                self.profile.write()
        finally:
            self.engine.close()
            self.plugins.shutdown()


def assemble(settings: Settings, plugins: Plugins | None = None, clock: Clock | None = None) -> Assembly:
    """Choose, check and wire everything; weights are loaded last, so that a wrong name costs no time."""
    watch = Stopwatch()
    plugins = bootstrap(settings) if plugins is None else plugins
    watch.lap("plugins")
    model = locate(settings, plugins)
    watch.lap("model files and tokenizer")
    need = executor_need(settings, plugins, model)
    chosen = choose(settings, plugins, need)
    watch.lap("choosing plugins")
    executor: Executor = plugins.create("executor", chosen["executor"], need)
    try:
        facts = engine_config(settings, plugins, need, executor.capacity(), chosen)
        watch.lap("compute libraries")
        engine = wire(plugins, facts, executor, model.tokenizer, clock or RealClock(), hash_seed=settings.hash_seed)
        watch.lap("weights and KV pool")
        profile = None if settings.profile is None else Profile(Path(settings.profile), engine, executor)
    except BaseException:  # an executor may have processes by now; Ctrl-C in the middle of loading leaves none, too
        executor.close()
        raise
    return Assembly(engine, executor, model.spec, plugins, watch.seconds, profile)


def find_loader(settings: Settings, plugins: Plugins) -> tuple[str, Loader]:
    """The loader that fits the model's name, and its plugin's name. Nothing is opened or downloaded yet."""
    need = LoaderNeed(settings.model, str(cache_dir()))
    name = plugins.select("loader", settings.loader, need).provider.name
    return name, plugins.create("loader", name, need)


def locate(settings: Settings, plugins: Plugins) -> Model:
    """Choose a loader, make the model's files local, read spec and tokenizer. Downloads are told on `news`."""
    name, loader = find_loader(settings, plugins)
    loader.pull(news.info)
    return Model(settings.model, name, loader, loader.spec(), loader.tokenizer())


def executor_need(settings: Settings, plugins: Plugins, model: Model) -> ExecutorNeed:
    """Everything the execution side needs, with attention and sampler chosen for this model and device."""
    spec = model.spec
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, spec.dtype, device)
    kv_dtype = dtype if settings.kv_dtype == "auto" else settings.kv_dtype
    max_len = _max_len(settings, spec)
    attention = plugins.select("attn", settings.attn, _attention_need(settings, spec, device, dtype, kv_dtype)).provider
    sampler = plugins.select("sampler", settings.sampler, _sampler_need(settings, device, spec)).provider.name
    return ExecutorNeed(
        model=settings.model,
        spec=spec,
        loader=model.loader_name,
        attn=attention.name,
        sampler=sampler,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=settings.block_size,
        max_rows=2 * settings.max_num_seqs,
        max_len=max_len,
        token_budget=(budget := _token_budget(settings, device, max_len)),
        kv_memory_bytes=_kv_memory(settings, spec, (device, dtype), budget),
        host_memory_bytes=settings.host_memory,
        threads=choose_threads(settings.threads) if device == "cpu" else settings.threads or 0,
        world_size=settings.tensor_parallel_size,
        eos_token_ids=model.tokenizer.eos_token_ids,
        attn_required=attention.capabilities & _useful(settings, spec, device),
        cache_dir=str(cache_dir()),
        logprobs_mode=settings.logprobs_mode,
        quantization=settings.quantization,
        profile=settings.profile is not None,
        max_num_seqs=settings.max_num_seqs,
        enforce_eager=settings.enforce_eager,
    )


def _attention_need(settings: Settings, spec: ModelSpec, device: str, dtype: str, kv_dtype: str) -> AttentionNeed:
    """What is asked of a backend before it is chosen: to serve the heads of a rank."""
    local = local_spec(spec, Shard(size=settings.tensor_parallel_size))
    return AttentionNeed(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        num_heads=local.num_heads,
        num_kv_heads=local.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=settings.block_size,
        windows=spec.distinct_windows,
        softcap=spec.attention_softcap,
    )


def _useful(settings: Settings, spec: ModelSpec, device: str) -> set[str]:
    """Capabilities of attention that the executor uses where they are offered."""
    rotating = {"fused_rope"} if spec.ropes else set()
    return rotating | ({"graphs"} if device == "cuda" and not settings.enforce_eager else set())


def _sampler_need(settings: Settings, device: str, spec: ModelSpec) -> SamplerNeed:
    """What the sampler must do, its number of rows not known yet."""
    modes = frozenset() if settings.logprobs_mode == "raw_logprobs" else frozenset({"logprobs_modes"})
    return SamplerNeed(device, spec.vocab_size, 0, (), modes, settings.logprobs_mode)


def choose(settings: Settings, plugins: Plugins, need: ExecutorNeed) -> dict[str, str]:
    """Names of all seven plugins, judged before anything heavy happens."""
    pool = AllocatorNeed(0, 0, need.block_size, need.max_rows, need.max_len, settings.prefix_cache)
    sched = SchedulerNeed(
        need.token_budget, settings.max_num_seqs, need.max_len, need.block_size, 0, settings.chunked_prefill
    )
    rest = {
        "alloc": (settings.alloc, pool),
        "sched": (settings.sched, sched),
        "preempt": (settings.preempt, PreemptionNeed(need.block_size, 0, 0)),
        "executor": (settings.executor, need),
    }
    chosen = {"loader": need.loader, "attn": need.attn, "sampler": need.sampler}
    for kind, (asked, its_need) in rest.items():
        chosen[kind] = plugins.select(kind, asked, its_need).provider.name
    return chosen


def engine_config(
    settings: Settings, plugins: Plugins, need: ExecutorNeed, capacity: KVCapacity, chosen: dict[str, str]
) -> EngineConfig:
    """The facts, pool sizes included."""
    useful = settings.max_num_seqs * -(-need.max_len // need.block_size)
    num_blocks = settings.num_blocks or min(capacity.num_blocks, useful)
    return EngineConfig(
        model=settings.model,
        architecture=need.spec.architecture,
        vocab_size=need.spec.vocab_size,
        device=need.device,
        dtype=need.dtype,
        kv_dtype=need.kv_dtype,
        block_size=need.block_size,
        num_blocks=num_blocks,
        num_host_blocks=min(capacity.num_host_blocks, num_blocks),
        block_bytes=capacity.block_bytes,
        num_ranks=capacity.num_ranks,
        max_model_len=need.max_len,
        max_num_seqs=settings.max_num_seqs,
        token_budget=need.token_budget,
        chunked_prefill=settings.chunked_prefill,
        prefix_cache=caches_prefixes(settings.prefix_cache, plugins.records[chosen["alloc"]].provider),
        seed=settings.seed,
        audit=settings.audit,
        quantization=need.quantization,
        logprobs_mode=settings.logprobs_mode,
        max_logprobs=settings.max_logprobs,
        structured_backend=settings.structured_backend,
        structured_timeout=settings.structured_timeout,
        structured_memory=settings.structured_memory,
        structured_cache=settings.structured_cache,
        jump_forward=settings.jump_forward,
        sampler_capabilities=plugins.records[chosen["sampler"]].provider.capabilities,
        plugins=chosen,
    )


def caches_prefixes(asked: bool, allocator: Provider[Any, Any]) -> bool:
    """Whether prefixes will be cached. A cache that is on and can never hit is told on `news`."""
    able = "prefix_cache" in allocator.capabilities
    if asked and not able:
        news.warning("prefix cache: off, because %s has none", allocator.name)
    return asked and able


def wire(
    plugins: Plugins,
    facts: EngineConfig,
    executor: Executor,
    tokenizer: Tokenizer,
    clock: Clock,
    *,
    hash_seed: int | None = None,
) -> Engine:
    """An engine of the facts' plugins around `executor`, which is started: it loads its weights now.

    Needs no model of its own, so that a benchmark or a simulator can bring an executor without one.
    """
    max_rows = 2 * facts.max_num_seqs
    allocator = plugins.create(
        "alloc",
        facts.plugins["alloc"],
        AllocatorNeed(
            num_blocks=facts.num_blocks,
            num_host_blocks=facts.num_host_blocks,
            block_size=facts.block_size,
            max_rows=max_rows,
            max_len=facts.max_model_len,
            prefix_cache=facts.prefix_cache,
            hash_seed=hash_seed,
        ),
    )
    preemption_need, scheduler_need = _policy_needs(facts)
    preemption = plugins.create("preempt", facts.plugins["preempt"], preemption_need)
    scheduler = plugins.create("sched", facts.plugins["sched"], scheduler_need)
    executor.start(facts.num_blocks, facts.num_host_blocks, allocator.tables)
    rows = Rows(max_rows, facts.max_model_len)
    ledger = Ledger(allocator, preemption, rows, (facts.token_budget, facts.max_num_seqs))
    return Engine(facts, tokenizer, (ledger, scheduler), executor, clock)


def _policy_needs(facts: EngineConfig) -> tuple[PreemptionNeed, SchedulerNeed]:
    preemption = PreemptionNeed(facts.block_size, facts.block_bytes, facts.num_host_blocks)
    scheduler = SchedulerNeed(
        token_budget=facts.token_budget,
        max_num_seqs=facts.max_num_seqs,
        max_len=facts.max_model_len,
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        chunked_prefill=facts.chunked_prefill,
    )
    return preemption, scheduler


def _max_len(settings: Settings, spec: ModelSpec) -> int:
    if settings.max_model_len is None:
        return spec.max_position
    if settings.max_model_len > spec.max_position:
        raise ConfigError(
            f"max_model_len {settings.max_model_len} exceeds what the model was built for ({spec.max_position} tokens)"
        )
    return settings.max_model_len


def _token_budget(settings: Settings, device: str, max_len: int) -> int:
    """Tokens a step. Without chunked prefill a whole prompt must fit, so the default grows to max_len."""
    budget = settings.max_num_batched_tokens
    if budget is None:
        budget = _BUDGET[device] if settings.chunked_prefill else max(_BUDGET[device], max_len)
        return max(budget, settings.max_num_seqs)
    if budget < settings.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) is less than max_num_seqs ({settings.max_num_seqs}): a step could not "
            "decode every running sequence; raise the one or lower the other"
        )
    return budget


def _kv_memory(settings: Settings, spec: ModelSpec, place: tuple[str, str], token_budget: int) -> int:
    """Bytes for the device pool, of all ranks together: what the user says, or what the device (`place`: device, dtype)
    has for it."""
    device, dtype = place
    if settings.num_blocks is not None:
        ranks, kinds = (
            settings.tensor_parallel_size,
            kv_bytes(dtype if settings.kv_dtype == "auto" else settings.kv_dtype),
        )
        token_bytes = ranks * local_spec(spec, Shard(size=ranks)).kv_bytes_per_token(*kinds)
        return settings.num_blocks * settings.block_size * token_bytes * 2
    if settings.kv_memory is not None:
        return settings.kv_memory
    from paged_core.engine.kv_memory import gpu_kv_memory, host_kv_memory

    if device == "cpu":
        return host_kv_memory(settings, spec, dtype)
    return gpu_kv_memory(settings, spec, dtype, token_budget, gpu_memory())
