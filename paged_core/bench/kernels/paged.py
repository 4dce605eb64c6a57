"""A plugin's attention, through its contract, on layers whose keys and values lie scattered over a pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch
from paged_core.bench.kernels.cases import KV_DTYPES, Heads, activations
from paged_core.model.memory import prefer_huge_pages
from paged_core.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.bench.kernels.cases import Case
    from paged_core.bench.site import Site
    from paged_core.plugins import Plugins

MOST_LAYERS = 512
_FILLED_AT_ONCE = 1 << 14  # tokens


@dataclass(frozen=True, slots=True)
class Backend:
    """What a case is measured with: a plugin by name, block size and element type of keys and values."""

    plugin: str
    block_size: int
    kv_dtype: str

    def need(self, heads: Heads, device: str) -> AttentionNeed:
        """What is asked of the plugin, but for lengths."""
        return AttentionNeed(
            device=device,
            dtype=activations(self.kv_dtype, device),
            kv_dtype=self.kv_dtype,
            num_heads=heads.query,
            num_kv_heads=heads.kv,
            head_dim=heads.size,
            block_size=self.block_size,
            cache_dir=str(cache_dir()),
        )


def declared(plugins: Plugins, heads: Heads, asked: Backend, device: str) -> tuple[str, tuple[str, ...]]:
    """The plugin by name, and the element types of keys and values that it declares.

    `auto` is what an engine of the asked type would take, so that all types are measured on one plugin. Raises what
    selecting raises when none fits.
    """
    provider = plugins.select("attn", asked.plugin, asked.need(heads, device)).provider
    known = KV_DTYPES[device].items()
    return provider.name, tuple(dtype for capability, dtype in known if capability in provider.capabilities)


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

    Raises what selecting a plugin raises when it does not fit.
    """

    def __init__(
        self, plugins: Plugins, case: Case, asked: Backend, site: Site, required: frozenset[str] = frozenset()
    ) -> None:
        batch, heads = batch_of(case, asked.block_size), case.heads
        need = replace(
            asked.need(heads, site.kind),
            max_len=case.context,
            max_rows=case.sequences,
            token_budget=batch.num_tokens,
            required=required,
        )
        self._backend: Attention = plugins.create("attn", asked.plugin, need)
        capabilities = plugins.select("attn", asked.plugin, need).provider.capabilities
        self.has_graphs, self.can_fuse_rope = "graphs" in capabilities, "fused_rope" in capabilities
        is_fused = "fused_rope" in required
        if is_fused:
            batch.rope = [_rotation(batch.num_tokens, heads, site.device)]
        layout = self._backend.layout(batch.tables.size)
        touched = max(1, min(layout.bytes_per_block * batch.tables.size, case.moved_bytes(asked.kv_dtype, need.dtype)))
        most = max(1, site.memory // (2 * layout.bytes_per_block * batch.tables.size))
        self.count = min(MOST_LAYERS, most, -(-site.rotation // touched))
        # one piece of memory: a layer may be less than a large page, the engine's pools are not
        caches = empty_cache((self.count, *layout.shape), getattr(torch, layout.dtype), site.device)
        _fill(plugins, asked.plugin, replace(need, required=frozenset()), caches[0])
        caches[1:] = caches[0]
        self.caches = list(caches)
        self.inputs = _drawn(batch.num_tokens, heads, need)
        self.out = torch.empty_like(self.inputs[0])
        self._layer = AttentionLayer(0, heads.size**-0.5, rope=0 if is_fused else -1)
        self._batch = batch
        self._plan = self._backend.plan(batch)

    def without_writing(self) -> None:
        """From now on no token has a slot: what is saved is the time of writing K and V."""
        self._plan = self._backend.plan(replace(self._batch, slots=np.full_like(self._batch.slots, -1)))

    def run(self) -> Tensor:
        """Every layer once; what the last one gave."""
        for cache in self.caches:
            self._backend.forward(self._layer, *self.inputs, cache, self._plan, self.out)
        return self.out


def _drawn(num_tokens: int, heads: Heads, need: AttentionNeed) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of so many tokens."""
    shapes = [(num_tokens, num, heads.size) for num in (heads.query, heads.kv, heads.kv)]
    q, k, v = (torch.randn(shape, device=need.device).to(getattr(torch, need.dtype)) for shape in shapes)
    return q, k, v


def _rotation(num_tokens: int, heads: Heads, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of some angles."""
    angles = torch.rand(num_tokens, heads.size // 2, device=device)
    return angles.cos(), angles.sin()


def empty_cache(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An empty cache, on pages as the executor's."""
    cache = torch.empty(tuple(shape), dtype=dtype, device=device)
    prefer_huge_pages(cache)
    return cache


def _fill(plugins: Plugins, plugin: str, need: AttentionNeed, cache: Tensor) -> None:
    """Write one layer's cache by the plugin itself: how it stores keys and values is its own affair.

    Every block is the whole of a sequence, so that writing it costs next to no attention.
    """
    size = need.block_size
    num_blocks = need.max_rows * -(-need.max_len // size)
    most = min(max(1, _FILLED_AT_ONCE // size), num_blocks)
    backend: Attention = plugins.create(
        "attn", plugin, replace(need, max_len=size, max_rows=most, token_budget=most * size)
    )
    heads = Heads(need.num_heads, need.num_kv_heads, need.head_dim)
    for begin in range(0, num_blocks, most):
        blocks = np.arange(begin, min(begin + most, num_blocks), dtype=np.int32)
        batch = _steps(blocks[:, None], size, size, size)
        q, k, v = _drawn(batch.num_tokens, heads, need)
        backend.forward(AttentionLayer(0, 1.0), q, k, v, cache, backend.plan(batch), torch.empty_like(q))
