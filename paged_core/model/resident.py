"""Resident: the model of an ExecutorNeed where it runs: attention, weights, both KV pools, and a runner over them.

    create -> capacity -> start(num_blocks, num_host_blocks, tables) -> [submit -> collect]* -> close

What executors and their workers have in common: a whole model in one process, or one rank's part of it. On a CPU a step
has run when `submit` returns; a device with a queue of its own has it then, and `collect` waits.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.batch import StepResult
from paged_core.api.executor import KVCapacity
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.sampler import Sampler, SamplerNeed
from paged_core.device.staging import BatchSizes, Staging
from paged_core.device.stream import CudaAccelerator
from paged_core.errors import ConfigError, EngineDeadError
from paged_core.model.decoder import Decoder
from paged_core.model.device_runner import DeviceRunner
from paged_core.model.kernels import load_kernels
from paged_core.model.memory import (
    large_blocks_returned,
    prefer_huge_pages,
    release_code,
    release_free_memory,
)
from paged_core.model.parallel.shard import Shard, local_spec
from paged_core.model.place import Place
from paged_core.model.runner import Runner
from paged_core.native.compile import use_cache_dir
from paged_core.tracing import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan
    from paged_core.api.executor import ExecutorNeed, Span
    from paged_core.api.model import ModelSpec
    from paged_core.api.provider import PluginRegistry
    from paged_core.device.stream import Accelerator
    from paged_core.model.device_runner import Flight
    from paged_core.model.parallel.collective import Collective

    Begun = StepResult | Flight
    Pools = tuple[list[torch.Tensor], list[torch.Tensor]]

log = logging.getLogger("paged_core.model")


class Resident:
    """Attention, sampler and loader come from `plugins` by the need's names.

    On a GPU it takes the process's current device: a rank sets that first. `accelerator`: another device with a queue
    of its own. `shard`: the rank whose part this is; pools and capacity are then those of its KV heads.
    """

    def __init__(
        self,
        need: ExecutorNeed,
        plugins: PluginRegistry,
        shard: Shard | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        """Raises ConfigError when the model cannot be cut for the shard's group."""
        self._need, self._plugins = need, plugins
        self.shard = shard or Shard()
        self._spec = local_spec(need.spec, self.shard)
        self.accelerator = accelerator
        if accelerator is None and need.device == "cuda":
            self.accelerator = CudaAccelerator(torch.device("cuda", torch.cuda.current_device()))
        self._runner: Runner | DeviceRunner | None = None
        self._pinned: list[torch.Tensor] = []
        self._trace = Trace()
        self._attention_need = _attention_need(need, self._spec)
        self._attention: Attention = plugins.create("attn", need.attn, self._attention_need)

    def capacity(self) -> KVCapacity:
        """Both pools, from the backend's bytes per block. Raises ConfigError where not one block fits."""
        block_bytes = self._attention.layout(1).bytes_per_block * self._spec.num_layers
        num_blocks = self._need.kv_memory_bytes // block_bytes
        if num_blocks < 1:
            raise ConfigError(
                f"{self._need.kv_memory_bytes} bytes of KV memory do not hold one block of {block_bytes} bytes: "
                "raise --kv-memory or lower --block-size"
            )
        return KVCapacity(num_blocks, self._need.host_memory_bytes // block_bytes, block_bytes)

    def start(
        self,
        num_blocks: int,
        num_host_blocks: int,
        tables: NDArray[np.int32],
        collective: Collective | None = None,
    ) -> None:
        """Load the weights and allocate both pools. Blocks are not cleared: unused slots may hold anything.

        `collective` is the shard's end of its group; only rank 0 gets a sampler. Raises ConfigError where a GPU has too
        little memory, ModelError for damaged weights.
        """
        joined = Shard() if collective is None else Shard(collective.rank, collective.size)
        assert joined == self.shard, f"{self.shard} was given the end of {joined}"
        try:
            self._runner = self._started((num_blocks, num_host_blocks), tables, collective)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU has too little memory for the weights of {self._need.model} and {num_blocks:,} KV blocks: "
                "lower --gpu-memory-utilization, --kv-memory or --max-num-batched-tokens, or end what else is on it"
            ) from error
        if self._need.profile:
            self._runner.watch(self._trace)

    def submit(self, plan: StepPlan) -> Begun:
        """Run a step now, or give it to the device. Raises EngineDeadError before `start` and after `close`."""
        if self._runner is None:
            raise EngineDeadError("the executor is not started or was closed")
        if isinstance(self._runner, Runner):
            return self._runner.run(plan)
        with _told_of_a_dead_device():
            return self._runner.submit(plan)

    def collect(self, begun: Begun) -> StepResult:
        """The step's result; waits for a device. Raises EngineDeadError when that failed, or its step is lost."""
        if isinstance(begun, StepResult):
            return begun
        if not isinstance(self._runner, DeviceRunner):
            raise EngineDeadError("the executor was closed")
        with _told_of_a_dead_device():
            return self._runner.collect(begun)

    def spans(self) -> list[Span]:
        """Parts of the steps since the last call."""
        return self._trace.take()

    def close(self) -> None:
        """Drop weights and pools, once the device is done with them. Idempotent."""
        runner, self._runner = self._runner, None
        if self.accelerator is not None and runner is not None:
            self.accelerator.synchronize()
            self._unpin(self.accelerator)
            del runner
            self.accelerator.release()

    def _started(
        self, num_blocks: tuple[int, int], tables: NDArray[np.int32], collective: Collective | None
    ) -> Runner | DeviceRunner:
        need = self._need
        if need.threads:
            torch.set_num_threads(need.threads)
        decoder = self._load(collective)
        sampler = self._make_sampler() if self.shard.rank == 0 else None
        layers = range(self._spec.num_layers)
        pools = (
            [self._cache(num_blocks[0], need.device) for _ in layers],
            [self._cache(num_blocks[1], "cpu") for _ in layers],
        )
        if self.accelerator is None:
            return Runner(decoder, self._attention, sampler, pools, (tables, need.block_size))
        self._pin(self.accelerator, pools[1])
        most = BatchSizes(max(need.token_budget, need.max_rows), need.max_rows, need.max_rows)
        staging = Staging(self.accelerator, tables, need.block_size, most)
        runner = DeviceRunner(decoder, self._attention, sampler, pools, staging, self.accelerator)
        runner.capture(need.max_num_seqs or need.max_rows, self._why_eager())
        return runner

    def _make_sampler(self) -> Sampler:
        need = self._need
        wanted = SamplerNeed(
            need.device, need.spec.vocab_size, need.max_rows, need.eos_token_ids, logprobs_mode=need.logprobs_mode
        )
        sampler: Sampler = self._plugins.create("sampler", need.sampler, wanted)
        return sampler

    def _pin(self, accelerator: Accelerator, host_pool: list[torch.Tensor]) -> None:
        """All of the pool or nothing: who swaps looks at one layer."""
        for cache in host_pool:
            why_not = accelerator.pin(cache)
            if why_not:
                log.warning("the host's KV pool stays pageable, swaps will be slow: %s", why_not)
                self._unpin(accelerator)
                break
            self._pinned.append(cache)

    def _unpin(self, accelerator: Accelerator) -> None:
        for cache in self._pinned:
            accelerator.unpin(cache)
        self._pinned.clear()

    def _why_eager(self) -> str:
        """Why steps must not be captured, or ""."""
        if self._need.enforce_eager:
            return "enforce_eager is set"
        return "" if "graphs" in self._need.attn_required else f"{self._need.attn} does not offer graphs"

    def _load(self, collective: Collective | None) -> Decoder:
        """The model, with no more memory than its weights and the largest of them need besides."""
        need = self._need
        wanted = LoaderNeed(need.model, need.cache_dir, need.device)
        loader: Loader = self._plugins.create("loader", need.loader, wanted)
        loader.pull()
        if need.cache_dir and need.device == "cpu":
            use_cache_dir(str(Path(need.cache_dir) / "kernels"))
        place = Place(torch.device(need.device), getattr(torch, need.dtype), need.quantization)
        load_kernels(place)
        release_code()
        with large_blocks_returned():
            decoder = Decoder.load(
                need.spec,
                _lightened(loader.weights()),
                place,
                self._attention,
                fused_rope="fused_rope" in need.attn_required,
                max_length=need.max_len,
                collective=collective,
            )
        release_free_memory()
        release_code()
        return decoder

    def _cache(self, num_blocks: int, device: str) -> torch.Tensor:
        layout = self._attention.layout(num_blocks)
        cache = torch.empty(layout.shape, dtype=getattr(torch, layout.dtype), device=device)
        prefer_huge_pages(cache)
        return cache


def _attention_need(need: ExecutorNeed, spec: ModelSpec) -> AttentionNeed:
    """What the model of `need` asks of attention where it has the heads of `spec`, its own or a rank's."""
    return AttentionNeed(
        device=need.device,
        dtype=need.dtype,
        kv_dtype=need.kv_dtype,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=need.block_size,
        max_len=need.max_len,
        max_rows=need.max_rows,
        token_budget=need.token_budget,
        windows=spec.distinct_windows,
        softcap=spec.attention_softcap,
        cache_dir=need.cache_dir,
        required=need.attn_required,
    )


@contextmanager
def _told_of_a_dead_device() -> Iterator[None]:
    """Errors of the device itself are the engine's end."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise EngineDeadError(f"the GPU failed: {str(error).strip().splitlines()[0]}") from error


def _lightened(weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights; then the code that read them may go, for packing takes memory of its own."""
    yield from weights
    release_code()
