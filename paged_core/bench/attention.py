"""`bench attention`: an attention plugin alone, through its contract, beside reading keys and values at the peak."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch
from paged_core.bench.timing import alternate, measure
from paged_core.engine.hardware import cpu_has_bf16, kv_bytes
from paged_core.model.memory import prefer_huge_pages
from paged_core.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.bench.timing import Measurement
    from paged_core.plugins import Plugins

ROTATION = 128 << 20
"""Bytes of keys and values that layers take turns with, so that a call finds its own in memory."""
KV_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "u8": "uint8"}
"""Element types of keys and values that are measured unless others are asked for, by the capability that stands for
each."""
_LEAST_SAMPLE_S = 5e-3
_MOST_LAYERS = 512
_FILLED_AT_ONCE = 256  # blocks


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, key-value heads, and elements of a head."""

    query: int
    kv: int
    size: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} x {self.size}"


@dataclass(frozen=True, slots=True)
class Case:
    """A step: `sequences`, each computing its last `new` tokens of `context` in all."""

    heads: Heads
    sequences: int
    context: int
    new: int = 1

    @property
    def kind(self) -> str:
        """decode, or prefill."""
        return "decode" if self.new == 1 else "prefill"

    def kv_bytes(self, kv_dtype: str) -> int:
        """Keys and values that the step attends to, each counted once, with what scales them."""
        element_bytes, row_bytes = kv_bytes(kv_dtype)
        return 2 * self.sequences * self.context * self.heads.kv * (self.heads.size * element_bytes + row_bytes)

    @property
    def ops(self) -> int:
        """Operations of both products, causal pairs only."""
        pairs = self.new * self.context - self.new * (self.new - 1) // 2
        return 4 * self.sequences * pairs * self.heads.query * self.heads.size


LLAMA_8B, SMOLLM2 = Heads(32, 8, 128), Heads(9, 3, 64)
GOAL_CASE = Case(LLAMA_8B, 32, 1024)
DECODES = (
    GOAL_CASE,
    *(Case(SMOLLM2, num, context) for num in (1, 16, 64) for context in (128, 512, 1024, 2048, 4096)),
)
PREFILLS = tuple(Case(heads, 1, length, length) for heads in (SMOLLM2, LLAMA_8B) for length in (512, 2048))
QUICK = (Case(SMOLLM2, 2, 64), Case(SMOLLM2, 1, 64, 64))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which plugin (a name, or auto), block size, element types of the KV cache, and how to measure.

    No types: those of `KV_DTYPES` that the plugin declares.
    """

    plugin: str = "auto"
    block_size: int = 16
    kv_dtypes: tuple[str, ...] = ()
    rounds: int = 5
    clock: str = "wall"


def activations(kv_dtype: str) -> str:
    """Element type of queries, new keys and values beside such a cache: its own, or the processor's beside codes."""
    if kv_dtype != "uint8":
        return kv_dtype
    return "bfloat16" if cpu_has_bf16() else "float32"


def batch_of(case: Case, block_size: int) -> Batch:
    """The step as attention sees it: every sequence has blocks of its own, scattered over the pool."""
    width = -(-case.context // block_size)
    ids = np.random.default_rng(0).permutation(case.sequences * width)
    return _steps(ids.astype(np.int32).reshape(case.sequences, width), case.context, case.new, block_size)


def _steps(tables: NDArray[np.int32], context: int, new: int, block_size: int) -> Batch:
    """A step of equal sequences, a row of `tables` each, that compute the last `new` of `context` tokens."""
    num = len(tables)
    positions = np.arange(context - new, context, dtype=np.int32)
    block, offset = np.divmod(positions, block_size)
    return Batch(
        num_tokens=num * new,
        num_seqs=num,
        query_start=np.arange(num + 1, dtype=np.int32) * new,
        seq_lens=np.full(num, context, dtype=np.int32),
        rows=np.arange(num, dtype=np.int32),
        tables=tables,
        positions=np.tile(positions, num),
        slots=(tables[:, block].astype(np.int64) * block_size + offset).ravel(),
    )


class Layers:
    """One plugin's backend and one case, with caches of so many layers that they do not fit a cache of the machine.

    Raises what selecting a plugin raises when none fits.
    """

    def __init__(self, plugins: Plugins, case: Case, kv_dtype: str, choice: Choice) -> None:
        batch, heads = batch_of(case, choice.block_size), case.heads
        need = _need(heads, kv_dtype, choice.block_size)
        need = replace(need, max_len=case.context, max_rows=case.sequences, token_budget=batch.num_tokens)
        self.plugin = plugins.select("attn", choice.plugin, need).provider.name
        self._backend: Attention = plugins.create("attn", self.plugin, need)
        first = _filled(plugins, self.plugin, need, batch.tables.size)
        count = min(_MOST_LAYERS, -(-ROTATION // (first.numel() * first.element_size())))
        # one piece of memory: a layer may be less than a large page here, the engine's pools are not
        self.caches = list(empty_cache((count, *first.shape), first.dtype).copy_(first.expand(count, *first.shape)))
        self._plan = self._backend.plan(batch)
        self.inputs = _drawn(batch.num_tokens, heads, need.dtype)
        self._out = torch.empty_like(self.inputs[0])
        self._layer = AttentionLayer(0, heads.size**-0.5)

    def run(self) -> Tensor:
        """Every layer once; what the last one gave."""
        for cache in self.caches:
            self._backend.forward(self._layer, *self.inputs, cache, self._plan, self._out)
        return self._out


def _need(heads: Heads, kv_dtype: str, block_size: int) -> AttentionNeed:
    return AttentionNeed(
        device="cpu",
        dtype=activations(kv_dtype),
        kv_dtype=kv_dtype,
        num_heads=heads.query,
        num_kv_heads=heads.kv,
        head_dim=heads.size,
        block_size=block_size,
        cache_dir=str(cache_dir()),
    )


def _drawn(num_tokens: int, heads: Heads, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of so many tokens."""
    shapes = [(num_tokens, num, heads.size) for num in (heads.query, heads.kv, heads.kv)]
    q, k, v = (torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes)
    return q, k, v


def empty_cache(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An empty cache, on pages as the executor's."""
    cache = torch.empty(tuple(shape), dtype=dtype)
    prefer_huge_pages(cache)
    return cache


def _filled(plugins: Plugins, plugin: str, need: AttentionNeed, num_blocks: int) -> Tensor:
    """One layer's cache, written by the plugin itself: how it stores keys and values is its own affair.

    Every block is the whole of a sequence, so that writing it costs next to no attention.
    """
    size, most = need.block_size, min(_FILLED_AT_ONCE, num_blocks)
    heads = Heads(need.num_heads, need.num_kv_heads, need.head_dim)
    backend: Attention = plugins.create(
        "attn", plugin, replace(need, max_len=size, max_rows=most, token_budget=most * size)
    )
    layout = backend.layout(num_blocks)
    cache = empty_cache(layout.shape, getattr(torch, layout.dtype))
    for begin in range(0, num_blocks, most):
        blocks = np.arange(begin, min(begin + most, num_blocks), dtype=np.int32)
        batch = _steps(blocks[:, None], size, size, size)
        q, k, v = _drawn(batch.num_tokens, heads, need.dtype)
        backend.forward(AttentionLayer(0, 1.0), q, k, v, cache, backend.plan(batch), torch.empty_like(q))
    return cache


@torch.inference_mode()
def read(plugins: Plugins, case: Case, kv_dtypes: Sequence[str], choice: Choice) -> dict[str, tuple[str, Measurement]]:
    """By element type of the cache, the plugin's name and seconds a layer; types take turns.

    Raises what selecting a plugin raises when none fits.
    """
    field = {kv_dtype: Layers(plugins, case, kv_dtype, choice) for kv_dtype in kv_dtypes}
    once = {name: measure(layers.run, 1, clock=choice.clock).median for name, layers in field.items()}
    sweeps = {name: max(1, min(100, round(_LEAST_SAMPLE_S / max(s, 1e-6)))) for name, s in once.items()}
    actions = {name: partial(_sweep, layers, sweeps[name]) for name, layers in field.items()}
    seconds = alternate(actions, choice.rounds, clock=choice.clock)
    return {
        name: (layers.plugin, seconds[name].each(sweeps[name] * len(layers.caches))) for name, layers in field.items()
    }


def _sweep(layers: Layers, count: int) -> None:
    for _ in range(count):
        layers.run()


def declared(plugins: Plugins, heads: Heads, choice: Choice) -> tuple[Choice, tuple[str, ...]]:
    """The choice with its plugin by name, and the types to measure: what was asked for, or what it declares.

    `auto` is what an engine in bfloat16 would take, so that all types are measured on one plugin.
    """
    if choice.kv_dtypes:
        return choice, choice.kv_dtypes
    need = _need(heads, KV_DTYPES["bf16"], choice.block_size)
    provider = plugins.select("attn", choice.plugin, need).provider
    found = tuple(dtype for capability, dtype in KV_DTYPES.items() if capability in provider.capabilities)
    return replace(choice, plugin=provider.name), found
