"""LocalExecutor: decoder, attention, sampler and both KV pools in this process."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.executor import Executor, ExecutorNeed, KVCapacity, Span, Ticket
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
from paged_core.model.place import Place
from paged_core.model.runner import Runner
from paged_core.native.compile import use_cache_dir
from paged_core.tracing import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.provider import PluginRegistry
    from paged_core.device.stream import Accelerator
    from paged_core.model.device_runner import Flight

log = logging.getLogger("paged_core.model")


class _Done(Ticket):
    """A step that has already run."""

    __slots__ = ("result",)

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        super().__init__(plan)
        self.result = result


class _Running(Ticket):
    """A step that a device has in its queue."""

    __slots__ = ("flight",)

    def __init__(self, plan: StepPlan, flight: Flight) -> None:
        super().__init__(plan)
        self.flight = flight


class LocalExecutor(Executor):
    """On a CPU a plan runs when it is submitted, and `collect` hands over the result. A device with a queue of its own
    (an accelerator; by default what the need's device is) is given two plans at a time, and `collect` waits for one."""

    def __init__(self, need: ExecutorNeed, plugins: PluginRegistry, accelerator: Accelerator | None = None) -> None:
        self._need = need
        self._plugins = plugins
        self._accelerator = accelerator
        if accelerator is None and need.device == "cuda":
            self._accelerator = CudaAccelerator(torch.device("cuda", torch.cuda.current_device()))
        self.max_in_flight = 1 if self._accelerator is None else 2
        self._runner: Runner | DeviceRunner | None = None
        self._pinned: list[torch.Tensor] = []
        self._trace = Trace()
        spec = need.spec
        self._attention_need = AttentionNeed(
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
        self._attention: Attention = plugins.create("attn", need.attn, self._attention_need)

    def capacity(self) -> KVCapacity:
        """Both pools, from the backend's bytes per block."""
        block_bytes = self._attention.layout(1).bytes_per_block * self._need.spec.num_layers
        num_blocks = self._need.kv_memory_bytes // block_bytes
        if num_blocks < 1:
            raise ConfigError(
                f"{self._need.kv_memory_bytes} bytes of KV memory do not hold one block of {block_bytes} bytes: "
                "raise --kv-memory or lower --block-size"
            )
        return KVCapacity(num_blocks, self._need.host_memory_bytes // block_bytes, block_bytes)

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Load the weights and allocate both pools. Blocks are not cleared: unused slots may hold anything.

        Raises ConfigError where a GPU has too little memory for them.
        """
        try:
            self._start(num_blocks, num_host_blocks, tables)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU has too little memory for the weights of {self._need.model} and {num_blocks:,} KV blocks: "
                "lower --gpu-memory-utilization, --kv-memory or --max-num-batched-tokens, or end what else is on it"
            ) from error

    def _start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        need, spec = self._need, self._need.spec
        if need.threads:
            torch.set_num_threads(need.threads)
        decoder = self._load()
        sampler: Sampler = self._plugins.create(
            "sampler",
            need.sampler,
            SamplerNeed(
                need.device, spec.vocab_size, need.max_rows, need.eos_token_ids, logprobs_mode=need.logprobs_mode
            ),
        )
        pools = (
            [self._cache(num_blocks, need.device) for _ in range(spec.num_layers)],
            [self._cache(num_host_blocks, "cpu") for _ in range(spec.num_layers)],
        )
        if self._accelerator is None:
            self._runner = Runner(decoder, self._attention, sampler, pools, (tables, need.block_size))
        else:
            self._runner = self._on_device(self._accelerator, decoder, sampler, pools, tables)
        if need.profile:
            self._runner.watch(self._trace)

    def submit(self, plan: StepPlan) -> Ticket:
        """Run the step now, or give it to the device."""
        if self._runner is None:
            raise EngineDeadError("the executor is not started or was closed")
        if isinstance(self._runner, DeviceRunner):
            with _told_of_a_dead_device():
                return _Running(plan, self._runner.submit(plan))
        return _Done(plan, self._runner.run(plan))

    def collect(self, ticket: Ticket) -> StepResult:
        """The step's result; waits for a device."""
        if isinstance(ticket, _Done):
            return ticket.result
        assert isinstance(ticket, _Running)
        if not isinstance(self._runner, DeviceRunner):
            raise EngineDeadError("the executor was closed")
        with _told_of_a_dead_device():
            return self._runner.collect(ticket.flight)

    def spans(self) -> list[Span]:
        """Parts of the steps since the last call."""
        return self._trace.take()

    def close(self) -> None:
        """Drop weights and pools, once the device is done with them."""
        runner, self._runner = self._runner, None
        if self._accelerator is not None and runner is not None:
            self._accelerator.synchronize()
            self._unpin()
            del runner
            self._accelerator.release()

    def _unpin(self) -> None:
        assert self._accelerator is not None
        for cache in self._pinned:
            self._accelerator.unpin(cache)
        self._pinned.clear()

    def _on_device(
        self,
        accelerator: Accelerator,
        decoder: Decoder,
        sampler: Sampler,
        pools: tuple[list[torch.Tensor], list[torch.Tensor]],
        tables: NDArray[np.int32],
    ) -> DeviceRunner:
        """A runner whose host pool is pinned, and which has captured its steps of decodes if it may."""
        need = self._need
        for cache in pools[1]:
            why_not = accelerator.pin(cache)
            if why_not:
                log.warning("the host's KV pool stays pageable, swaps will be slow: %s", why_not)
                self._unpin()  # all of it or nothing: who swaps looks at one layer
                break
            self._pinned.append(cache)
        most = BatchSizes(max(need.token_budget, need.max_rows), need.max_rows, need.max_rows)
        staging = Staging(accelerator, tables, need.block_size, most)
        runner = DeviceRunner(decoder, self._attention, sampler, pools, staging, accelerator)
        runner.capture(need.max_num_seqs or need.max_rows, self._why_eager())
        return runner

    def _why_eager(self) -> str:
        """Why steps must not be captured, or ""."""
        if self._need.enforce_eager:
            return "enforce_eager is set"
        return "" if "graphs" in self._need.attn_required else f"{self._need.attn} does not offer graphs"

    def _load(self) -> Decoder:
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
            )
        release_free_memory()
        release_code()
        return decoder

    def _cache(self, num_blocks: int, device: str) -> torch.Tensor:
        layout = self._attention.layout(num_blocks)
        cache = torch.empty(layout.shape, dtype=getattr(torch, layout.dtype), device=device)
        prefer_huge_pages(cache)
        return cache


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
