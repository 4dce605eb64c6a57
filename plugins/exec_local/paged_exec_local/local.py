"""LocalExecutor: decoder, attention, sampler and both KV pools in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.executor import Executor, ExecutorNeed, KVCapacity, Span, Ticket
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.sampler import Sampler, SamplerNeed
from paged_core.errors import ConfigError, EngineDeadError
from paged_core.model.decoder import Decoder
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


class _Done(Ticket):
    """A step that has already run: this executor is synchronous."""

    __slots__ = ("result",)

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        super().__init__(plan)
        self.result = result


class LocalExecutor(Executor):
    """Runs a plan when it is submitted; `collect` hands over the result."""

    def __init__(self, need: ExecutorNeed, plugins: PluginRegistry) -> None:
        self._need = need
        self._plugins = plugins
        self._runner: Runner | None = None
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
        """Load the weights and allocate both pools. Blocks are not cleared: unused slots may hold anything."""
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
        pools = tuple(
            [self._cache(blocks, device) for _ in range(spec.num_layers)]
            for blocks, device in ((num_blocks, need.device), (num_host_blocks, "cpu"))
        )
        self._runner = Runner(decoder, self._attention, sampler, (pools[0], pools[1]), (tables, need.block_size))
        if need.profile:
            self._runner.watch(self._trace)

    def submit(self, plan: StepPlan) -> Ticket:
        """Run the step now."""
        if self._runner is None:
            raise EngineDeadError("the executor is not started or was closed")
        return _Done(plan, self._runner.run(plan))

    def collect(self, ticket: Ticket) -> StepResult:
        """The step's result."""
        assert isinstance(ticket, _Done)
        return ticket.result

    def spans(self) -> list[Span]:
        """Parts of the steps since the last call."""
        return self._trace.take()

    def close(self) -> None:
        """Drop weights and pools."""
        self._runner = None

    def _load(self) -> Decoder:
        """The model, with no more memory than its weights and the largest of them need besides."""
        need = self._need
        loader: Loader = self._plugins.create("loader", need.loader, LoaderNeed(need.model, need.cache_dir))
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


def _lightened(weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights; then the code that read them may go, for packing takes memory of its own."""
    yield from weights
    release_code()
