"""CudaAttention: one launch to write, one or two to attend, and one to merge where contexts were cut.

Cache of a layer: [num_blocks, 2, num_kv_heads, block_size, head_dim]; index 0 of the second axis holds keys, 1 values.
A block is one contiguous piece, so copies and swaps move whole vectors, and so is what a KV head reads of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_attn_cuda.kernels import (
    COPY,
    COPY_THREADS,
    COPY_VECTORS,
    DECODE_ROWS,
    VECTOR_BYTES,
    WRITE_THREADS,
    Bound,
    Types,
)
from paged_attn_cuda.planning import SplitRule
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout
from paged_core.device.fitness import ELEMENT_BYTES
from paged_core.device.grids import DevicePlan, plan_of
from paged_core.device.scratch import Addresses, Scratch
from paged_core.device.transfer import Transfers
from paged_core.device.upload import uploaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_attn_cuda.launcher import Launcher
    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch

_NO_WINDOW = 1 << 30  # more keys than any sequence has


class CudaAttention(Attention):
    """One need's kernels, launched on torch's current stream. The host computes grids and waits for nothing."""

    def __init__(self, need: AttentionNeed, launcher: Launcher) -> None:
        self._need = need
        self._device = device = torch.device(need.device)
        self._returns_lse = "lse" in need.required
        types = Types.of(need.dtype, need.kv_dtype, need.head_dim)
        self._vector, self._element_bytes = types.vector(), ELEMENT_BYTES[need.dtype]
        group = need.num_heads // need.num_kv_heads
        self._heads = min(group, types.prefill_rows())  # of a prefill's tile
        self._tile_queries = types.prefill_rows() // self._heads
        self._prefill_programs = need.num_kv_heads * -(-group // self._heads)
        self._decode_programs = need.num_kv_heads * -(-group // DECODE_ROWS)
        invariant = "batch_invariant" in need.required
        self._rule = SplitRule(self._decode_programs, launcher.num_processors, need.max_len, invariant)
        self._bind(launcher, types)
        parts = self._rule.most_parts(need.max_rows) * need.num_heads
        self._parts = Scratch(torch.float32, device, parts * (need.head_dim + 2))
        rotated = need.token_budget * need.num_heads * need.head_dim if "fused_rope" in need.required else 0
        self._rotated = Scratch(getattr(torch, need.dtype), device, rotated)
        self._scales: dict[tuple[float | tuple[float, ...], ...], tuple[Tensor, int]] = {}
        self._addresses = Addresses(device)
        self._transfers = Transfers(device, self._copy)
        self._bound_plan: DevicePlan | None = None

    def _bind(self, launcher: Launcher, types: Types) -> None:
        """Every kernel of this need, with the arguments that never change."""
        need = self._need
        shift = need.block_size.bit_length() - 1
        heads = {"num_heads": need.num_heads, "head_dim": need.head_dim}
        shape = {**heads, "num_kv_heads": need.num_kv_heads, "block_shift": shift}
        self._writes = {width: Bound(launcher, types.write(width), **shape) for width in (types.vector(), 1)}
        self._decode = Bound(launcher, types.decode(), **shape)
        self._merge = Bound(launcher, types.merge(), **heads)
        self._prefill = Bound(launcher, types.prefill(), **shape)
        self._prefill.set(tile_queries=self._tile_queries, heads=self._heads)
        self._block_vectors = self.layout(1).bytes_per_block // VECTOR_BYTES
        self._chunks = -(-self._block_vectors // (COPY_THREADS * COPY_VECTORS))
        self._copy_kernel = Bound(launcher, COPY, block_vectors=self._block_vectors, num_chunks=self._chunks)

    def layout(self, num_blocks: int) -> KVLayout:
        """[num_blocks, 2, num_kv_heads, block_size, head_dim]."""
        need = self._need
        elements = 2 * need.num_kv_heads * need.block_size * need.head_dim
        shape = (num_blocks, 2, need.num_kv_heads, need.block_size, need.head_dim)
        return KVLayout(shape, need.kv_dtype, 0, elements * ELEMENT_BYTES[need.kv_dtype])

    def plan(self, batch: Batch) -> DevicePlan:
        """Grids, and the batch's arrays on the device."""
        return plan_of(batch, self._device, self._rule.num_splits, self._tile_queries)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: DevicePlan, out: Tensor
    ) -> Tensor | None:
        """Write k and v, then attend. Raises ValueError for tensors that kernels cannot read as they lie."""
        if not kv.is_contiguous():
            raise ValueError(f"attn_cuda got a cache of strides {kv.stride()} where it laid out {tuple(kv.shape)}")
        q, k, v = self._readable("q", q), self._readable("k", k), self._readable("v", v)
        target = out if self._is_aligned("out", out) else torch.empty_like(out, memory_format=torch.contiguous_format)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if self._returns_lse else None
        if not plan.num_tokens:
            return lse
        if plan is not self._bound_plan:
            self._bind_plan(plan)
        cache = kv.data_ptr(), self._scales_of(layer)
        queries = self._write(layer, (q, k, v), cache, plan)
        results = target.data_ptr(), target.stride(0), None if lse is None else lse.data_ptr()
        self._attend(layer, queries, cache, plan, results)
        if target is not out:
            out.copy_(target)
        return lse

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """All layers and copies in one launch."""
        self._copy(caches, caches, np.asarray(copies, dtype=np.int64).reshape(-1, 2))

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Beside the steps, on a stream of their own, where the host's pool is pinned."""
        self._transfers.swap(sources, targets, pairs)

    def _readable(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor, or where its rows begin between vectors (rare: an odd offset into a buffer) a copy."""
        if self._is_aligned(name, tensor):
            return tensor
        return tensor.clone(memory_format=torch.contiguous_format)

    def _is_aligned(self, name: str, tensor: Tensor) -> bool:
        """Whether every token's row begins at a whole vector. Raises ValueError where heads do not lie side by side."""
        stride_token, stride_head, stride_element = tensor.stride()
        if stride_element != 1 or (stride_head != self._need.head_dim and tensor.shape[1] > 1):
            raise ValueError(
                f"attn_cuda got {name} of strides {tensor.stride()}: heads of {self._need.head_dim} elements must lie "
                "one behind the other; only the token axis may be strided"
            )
        return (tensor.data_ptr() | stride_token * self._element_bytes) % VECTOR_BYTES == 0

    def _bind_plan(self, plan: DevicePlan) -> None:
        """What all layers of a step share."""
        arrays = plan.arrays
        starts, lengths, tables = arrays.query_start.data_ptr(), arrays.seq_lens.data_ptr(), arrays.tables
        for kernel in (self._decode, self._prefill):
            kernel.set(query_start=starts, lengths=lengths, table_rows=arrays.rows.data_ptr())
            kernel.set(tables=tables.data_ptr(), stride_table=tables.stride(0))
        self._prefill.set(num_sequences=plan.num_seqs)
        for write in self._writes.values():
            write.set(slots=arrays.slots.data_ptr())
        if plan.num_splits > 1:
            parts = plan.num_seqs * self._need.num_heads * plan.num_splits
            sums = self._parts.take(parts * (self._need.head_dim + 2)).data_ptr()
            scratch = {"partial_sums": sums, "partial_stats": sums + 4 * parts * self._need.head_dim}
            self._merge.set(num_splits=plan.num_splits, query_start=starts, lengths=lengths, **scratch)
            self._decode.set(**scratch)
        self._decode.set(num_splits=plan.num_splits)
        self._bound_plan = plan

    def _write(
        self, layer: AttentionLayer, qkv: tuple[Tensor, Tensor, Tensor], cache: tuple[int, int], plan: DevicePlan
    ) -> tuple[int, int]:
        """Keys and values to their slots. cache: addresses of it and its scales.

        Returns address and token stride of the queries to attend with: rotated ones where the layer rotates.
        """
        q, k, v = qkv
        need, queries, half, width = self._need, (q.data_ptr(), q.stride(0)), 0, self._vector
        rope = plan.rope[layer.rope] if layer.rope >= 0 else None
        if rope is not None:
            half = rope[0].shape[1]
            width = 1 if half % width or not all(map(_begins_at_vectors, rope)) else width
        kernel = self._writes[width]
        to = kernel.arguments
        to.q.value, to.stride_q.value = queries
        to.k.value, to.stride_k.value = k.data_ptr(), k.stride(0)
        to.v.value, to.stride_v.value = v.data_ptr(), v.stride(0)
        (to.cache.value, to.scales.value), to.half.value = cache, half
        if rope is not None:
            cos, sin = rope
            to.cos.value, to.stride_cos.value = cos.data_ptr(), cos.stride(0)
            to.sin.value, to.stride_sin.value = sin.data_ptr(), sin.stride(0)
            stride = need.num_heads * need.head_dim
            queries = self._rotated.take(plan.num_tokens * stride).data_ptr(), stride
            to.rotated.value = queries[0]
        turned = (need.num_heads if half else 0) + need.num_kv_heads
        elements = turned * (need.head_dim - half) + need.num_kv_heads * need.head_dim  # partners go with their pair
        kernel((plan.num_tokens, -(-elements // (width * WRITE_THREADS)), 1))
        return queries

    def _attend(
        self,
        layer: AttentionLayer,
        queries: tuple[int, int],
        cache: tuple[int, int],
        plan: DevicePlan,
        results: tuple[int, int, int | None],
    ) -> None:
        """Sequences of one token, then those of more. results: address of out, its stride, address of log-sum-exp."""
        window = _NO_WINDOW if layer.window is None else layer.window
        for kernel, is_launched in ((self._decode, plan.num_splits), (self._prefill, plan.num_tiles)):
            if is_launched:
                to = kernel.arguments
                to.q.value, to.stride_q.value = queries
                to.cache.value, to.scales.value = cache
                to.out.value, to.stride_out.value, to.lse.value = results
                to.scale.value, to.softcap.value, to.window.value = layer.scale, layer.softcap or 0.0, window
        if plan.num_splits:
            self._decode((plan.num_seqs, self._decode_programs, plan.num_splits))
        if plan.num_splits > 1:
            to = self._merge.arguments
            to.out.value, to.stride_out.value, to.lse.value = results
            to.window.value = window
            self._merge((plan.num_seqs, self._need.num_heads, 1))
        if plan.num_tiles:
            self._prefill((plan.num_tiles, self._prefill_programs, 1))

    def _scales_of(self, layer: AttentionLayer) -> int:
        """Address of float32 [2, kv_heads] on the device: scales of keys, then of values."""
        key = (layer.k_scale, layer.v_scale)
        known = self._scales.get(key)
        if known is None:
            heads = self._need.num_kv_heads
            rows = [np.broadcast_to(np.asarray(scale, dtype=np.float32), heads) for scale in key]
            tensor = uploaded(np.stack(rows), self._device)
            known = self._scales[key] = tensor, tensor.data_ptr()
        return known[1]

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: NDArray[np.int64]) -> None:
        """Block pairs[i, 0] of every source to block pairs[i, 1] of its target."""
        if not len(pairs) or not sources:
            return
        moved = uploaded(pairs, self._device)
        read, write = self._addresses.of(sources), self._addresses.of(targets)
        self._copy_kernel.set(sources=read.data_ptr(), targets=write.data_ptr(), pairs=moved.data_ptr())
        self._copy_kernel((len(pairs) * self._chunks, len(sources), 1))


def _begins_at_vectors(angles: Tensor) -> bool:
    """Whether every row of float32 begins at a whole vector."""
    return (angles.data_ptr() | angles.stride(0) * 4) % VECTOR_BYTES == 0
