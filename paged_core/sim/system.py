"""System: what is simulated: a model on devices, and the plugins that run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.executor import ExecutorNeed
from paged_core.api.preemption import PreemptionNeed
from paged_core.api.scheduler import SchedulerNeed
from paged_core.costs.choice import device_called, model_called
from paged_core.engine.assemble import caches_prefixes, wire
from paged_core.engine.config import EngineConfig
from paged_core.errors import ConfigError
from paged_core.model.ids_only import IdsOnly
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.api.executor import Executor
    from paged_core.engine.clock import VirtualClock
    from paged_core.engine.engine import Engine
    from paged_core.plugins import Plugins

EXECUTOR = "exec_sim"


@dataclass(frozen=True, slots=True)
class System:
    """A server that is not here. Names of plugins as on the command line (`sched_fcfs`, `fcfs`, `auto`).

    model            a name of `paged_core.costs.models`, or a .json file of `paged-core calibrate`
    device           a name of `paged_core.costs.devices`, or such a file
    cost             a cost model: auto, calibrated, roofline, a .json file of `paged-core calibrate`, module:attribute
    num_blocks       None: what the device's memory leaves beside the weights; the paper's slots for its own servers
    num_host_blocks  None: as many as num_blocks
    max_model_len    None: the model's longest
    plugins          settings tables by plugin id, as in paged.toml
    plugin_modules   plugins to load besides the installed ones, as for --plugin
    """

    model: str = "opt-13b"
    device: str = "a100-40gb"
    num_devices: int = 1
    cost: str = "auto"
    alloc: str = "auto"
    sched: str = "auto"
    preempt: str = "auto"
    block_size: int = 16
    num_blocks: int | None = None
    num_host_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    token_budget: int = 2560
    chunked_prefill: bool = True
    prefix_cache: bool = False
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plugin_modules: tuple[str, ...] = ()

    def build(self, clock: VirtualClock, seed: int = 0) -> Engine:
        """The real engine around exec_sim. ConfigError for what does not exist or fit."""
        plugins = self._registry()
        need = self._executor_need()
        executor: Executor = plugins.create("executor", EXECUTOR, need)
        facts = self._facts(plugins, need, executor, seed)
        tokenizer = IdsOnly(need.spec.vocab_size, need.eos_token_ids)
        return wire(plugins, facts, executor, tokenizer, clock, hash_seed=seed)

    def _registry(self) -> Plugins:
        device_called(self.device)
        mine = {"device": self.device, "num_devices": self.num_devices, "cost": self.cost}
        tables = {**self.plugins, EXECUTOR: {**mine, **self.plugins.get(EXECUTOR, {})}}
        return bootstrap(Settings.load(plugins=tables, plugin_modules=self.plugin_modules))

    def _executor_need(self) -> ExecutorNeed:
        spec = model_called(self.model)
        max_len = spec.max_position if self.max_model_len is None else self.max_model_len
        if max_len > spec.max_position:
            raise ConfigError(f"max_model_len {max_len} exceeds what {self.model} was built for ({spec.max_position})")
        if self.token_budget < self.max_num_seqs:
            raise ConfigError(f"token_budget {self.token_budget} is less than max_num_seqs {self.max_num_seqs}")
        return ExecutorNeed(
            model=self.model,
            spec=spec,
            loader="",
            attn="",
            sampler="",
            device="simulated",
            dtype="float16",
            kv_dtype="float16",
            block_size=self.block_size,
            max_rows=2 * self.max_num_seqs,
            max_len=max_len,
            token_budget=self.token_budget,
            kv_memory_bytes=0,
            host_memory_bytes=0,
            eos_token_ids=spec.eos_token_ids,
            required=frozenset({"simulated"}),
            max_num_seqs=self.max_num_seqs,
        )

    def _facts(self, plugins: Plugins, need: ExecutorNeed, executor: Executor, seed: int) -> EngineConfig:
        capacity = executor.capacity()
        num_blocks = self.num_blocks or capacity.num_blocks
        num_host_blocks = num_blocks if self.num_host_blocks is None else self.num_host_blocks
        wanted: dict[str, tuple[str, Any]] = {
            "alloc": (
                self.alloc,
                AllocatorNeed(
                    num_blocks, num_host_blocks, self.block_size, need.max_rows, need.max_len, self.prefix_cache
                ),
            ),
            "sched": (
                self.sched,
                SchedulerNeed(
                    self.token_budget,
                    self.max_num_seqs,
                    need.max_len,
                    self.block_size,
                    num_blocks,
                    self.chunked_prefill,
                ),
            ),
            "preempt": (self.preempt, PreemptionNeed(self.block_size, capacity.block_bytes, num_host_blocks)),
        }
        chosen = {kind: plugins.select(kind, name, its_need).provider.name for kind, (name, its_need) in wanted.items()}
        return EngineConfig(
            model=self.model,
            architecture=need.spec.architecture,
            vocab_size=need.spec.vocab_size,
            device=f"{self.num_devices} x {self.device}, simulated",
            dtype=need.dtype,
            kv_dtype=need.kv_dtype,
            block_size=self.block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_bytes=capacity.block_bytes,
            max_model_len=need.max_len,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            chunked_prefill=self.chunked_prefill,
            prefix_cache=caches_prefixes(self.prefix_cache, plugins.records[chosen["alloc"]].provider),
            seed=seed,
            plugins={**chosen, "executor": EXECUTOR},
        )
