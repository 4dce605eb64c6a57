"""attn_numpy: paged attention in plain numpy, one sequence after the other, float32. Replace it, piece by piece.

Cache of a layer: [2, blocks, block_size, kv_heads, head_dim]; index 0 holds keys, 1 values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paged_core import hookimpl
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch


class Span(NamedTuple):
    """One sequence of a step: flat rows `begin` .. `end - 1`, and the slots of its positions 0 .. length - 1."""

    begin: int
    end: int
    slots: NDArray[np.int64]


class Plan(NamedTuple):
    """What all layers share: token `tokens[i]` is written to slot `slots[i]`; those without one (-1) are left out."""

    spans: list[Span]
    tokens: NDArray[np.int64]
    slots: NDArray[np.int64]


class NumpyAttention(Attention):
    """Gather keys and values through the block table, multiply, softmax, multiply."""

    def __init__(self, need: AttentionNeed) -> None:
        self._need = need

    def layout(self, num_blocks: int) -> KVLayout:
        """Two arrays in one: keys, then values."""
        need = self._need
        shape = (2, num_blocks, need.block_size, need.num_kv_heads, need.head_dim)
        return KVLayout(shape, "float32", block_axis=1, bytes_per_block=4 * int(np.prod(shape)) // max(1, num_blocks))

    def plan(self, batch: Batch) -> Plan:
        """Turn block tables into slots, once for all layers."""
        size, spans = self._need.block_size, []
        for i in range(batch.num_seqs):
            length = int(batch.seq_lens[i])
            blocks = batch.tables[batch.rows[i], : -(-length // size)].astype(np.int64)  # slots may pass 2**31
            slots = (blocks[:, None] * size + np.arange(size)).reshape(-1)[:length]
            spans.append(Span(int(batch.query_start[i]), int(batch.query_start[i + 1]), slots))
        tokens = np.flatnonzero(batch.slots[: batch.num_tokens] >= 0)
        return Plan(spans, tokens, batch.slots[tokens])

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: Plan, out: Tensor
    ) -> Tensor | None:
        """Write, then attend: a token sees itself. The arrays are views of the tensors; nothing is converted."""
        keys, values = kv.flatten(1, 2).numpy()  # each [slots, kv_heads, head_dim]
        keys[plan.slots] = k.numpy()[plan.tokens] / layer.k_scale
        values[plan.slots] = v.numpy()[plan.tokens] / layer.v_scale
        lse = q.new_empty(q.shape[:2]) if "lse" in self._need.required else None
        for span in plan.spans:
            rows, slots = slice(span.begin, span.end), span.slots
            if layer.window is not None:  # what every query has left behind is not even read
                slots = slots[max(0, len(slots) - (span.end - span.begin) - layer.window + 1) :]
            attended, sums = self._attend(layer, q.numpy()[rows], keys[slots], values[slots])
            out.numpy()[rows] = attended * layer.v_scale
            if lse is not None:
                lse.numpy()[rows] = sums
        return lse

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """Indexing with a list copies all sources before any target is written."""
        for cache in caches:
            cache.numpy()[:, [copy.dst for copy in copies]] = cache.numpy()[:, [copy.src for copy in copies]]

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Both tiers are memory of this process; a device would start transfers here and order them."""
        for source, target in zip(sources, targets, strict=True):
            target.numpy()[:, [pair.dst for pair in pairs]] = source.numpy()[:, [pair.src for pair in pairs]]

    def _attend(
        self, layer: AttentionLayer, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """q [queries, heads, head_dim]; k, v [length, kv_heads, head_dim] -> out like q, log-sum-exp [queries, heads].

        The queries are the last of these positions. Consecutive heads share a key-value head.
        """
        num, heads, dim = q.shape
        length, kv_heads, _ = k.shape
        grouped = q.reshape(num, kv_heads, heads // kv_heads, dim)
        logits = np.einsum("qhgd,khd->hgqk", grouped, k, optimize=True) * np.float32(layer.scale * layer.k_scale)
        if layer.softcap is not None:
            logits = np.tanh(logits / np.float32(layer.softcap)) * np.float32(layer.softcap)
        position, key = np.arange(length - num, length)[:, None], np.arange(length)[None, :]
        hidden = key > position
        if layer.window is not None:
            hidden |= key <= position - layer.window
        logits = np.where(hidden, np.float32(-np.inf), logits)
        peak = logits.max(-1, keepdims=True)
        weights = np.exp(logits - peak)
        total = weights.sum(-1, keepdims=True)
        out = np.einsum("hgqk,khd->qhgd", weights / total, v, optimize=True)
        lse = (np.log(total) + peak)[..., 0]  # [kv_heads, heads per kv_head, queries]
        return out.reshape(num, heads, dim), lse.reshape(heads, num).T


class NumpyProvider(Provider[AttentionNeed, Attention]):
    """Offers `NumpyAttention`; priority 0, so that `auto` does not choose it unasked."""

    name, kind, api, priority = "attn_numpy", "attn", 1, 0
    summary = "plain numpy, float32: an example of a new backend"
    capabilities = frozenset({"sliding_window", "softcap", "lse", "fp32", "swap"})
    Settings = PluginSettings

    def probe(self, need: AttentionNeed) -> Fit:
        """Fits float32 on the CPU; every block size and head size."""
        reasons = self.missing_capabilities(need.required)
        if need.device != "cpu":
            reasons.append(f"attn_numpy computes on the CPU, not on {need.device}")
        for what, dtype in (("activations", need.dtype), ("keys and values", need.kv_dtype)):
            if dtype != "float32":
                reasons.append(f"attn_numpy handles float32 {what} only, not {dtype}")
        if min(need.block_size, need.head_dim, need.num_kv_heads) < 1 or need.num_heads % need.num_kv_heads:
            reasons.append(f"{need.num_heads} heads cannot share {need.num_kv_heads} key-value heads evenly")
        return Fit.judge(reasons, ["run with --device=cpu --dtype=float32"])

    def create(self, need: AttentionNeed, settings: Any, plugins: PluginRegistry) -> Attention:
        """Build the backend. A device's runtime would be imported and opened here, and nowhere earlier."""
        return NumpyAttention(need)


@hookimpl
def paged_attention() -> NumpyProvider:
    """Register the provider."""
    return NumpyProvider()
