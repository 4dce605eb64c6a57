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
    ELEMENT_BYTES,
    VECTOR_BYTES,
    WRITE_THREADS,
    Bound,
    Types,
)
from paged_attn_cuda.planning import CudaPlan, SplitRule, plan_of
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout
from paged_core.device.scratch import Addresses, Scratch
from paged_core.device.staging import on_device
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
_DECODE_ROWS = 16  # query heads that a program of decode serves: the rows of one matrix


class CudaAttention(Attention):
    """One need's kernels, launched on torch's current stream. The host computes grids and waits for nothing."""

    def __init__(self, need: AttentionNeed, launcher: Launcher) -> None:
        self._need = need
        self._device = device = torch.device(need.device)
        self._returns_lse = "lse" in need.required
        group = need.num_heads // need.num_kv_heads
        self._types = types = Types.of(need.dtype, need.kv_dtype, need.head_dim)
        self._heads = min(group, types.prefill_rows())  # of a prefill's tile
        self._tile_queries = types.prefill_rows() // self._heads
        self._prefill_programs = need.num_kv_heads * -(-group // self._heads)
        self._decode_programs = need.num_kv_heads * -(-group // _DECODE_ROWS)
        invariant = "batch_invariant" in need.required
        self._rule = SplitRule(self._decode_programs, launcher.num_processors, need.max_len, invariant)
        self._bind(launcher)
        parts = self._rule.most_parts(need.max_rows) * need.num_heads
        self._parts = Scratch(torch.float32, device, parts * (need.head_dim + 2))
        rotated = need.token_budget * need.num_heads * need.head_dim if "fused_rope" in need.required else 0
        self._rotated = Scratch(getattr(torch, need.dtype), device, rotated)
        self._scales: dict[tuple[float | tuple[float, ...], ...], Tensor] = {}
        self._addresses = Addresses(device)
        self._transfers = Transfers(device, self._copy)
        self._bound_plan: CudaPlan | None = None

    def _bind(self, launcher: Launcher) -> None:
        """Every kernel of this need, with the arguments that never change."""
        need, types, vector = self._need, self._types, self._types.vector()
        shift = need.block_size.bit_length() - 1
        heads = {"num_heads": need.num_heads, "head_dim": need.head_dim}
        shape = {**heads, "num_kv_heads": need.num_kv_heads, "block_shift": shift}
        self._writes = {width: Bound(launcher, types.write(width), **shape) for width in (vector, 1)}
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

    def plan(self, batch: Batch) -> CudaPlan:
        """Grids, and the batch's arrays on the device."""
        return plan_of(batch, on_device(batch, self._device), self._rule, self._tile_queries)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: CudaPlan, out: Tensor
    ) -> Tensor | None:
        """Write k and v, then attend. Raises ValueError for tensors that kernels cannot read as they lie."""
        self._check(q, k, v, kv, out)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if self._returns_lse else None
        if not plan.num_tokens:
            return lse
        if plan is not self._bound_plan:
            self._bind_plan(plan)
        target = out if _is_aligned(out) else torch.empty_like(out, memory_format=torch.contiguous_format)
        scales = self._scales_of(layer)
        q = self._write(layer, (q, k, v), (kv, scales), plan)
        self._attend(layer, (q, kv, scales), plan, (target, lse))
        if target is not out:
            out.copy_(target)
        return lse

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """All layers and copies in one launch."""
        self._copy(caches, caches, np.asarray(copies, dtype=np.int64).reshape(-1, 2))

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Beside the steps, on a stream of their own, where the host's pool is pinned."""
        self._transfers.swap(sources, targets, pairs)

    def _check(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, out: Tensor) -> None:
        head_dim = self._need.head_dim
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
            _, stride_head, stride_element = tensor.stride()
            if stride_element != 1 or stride_head != head_dim:
                raise ValueError(
                    f"attn_cuda got {name} of strides {tensor.stride()}: heads of {head_dim} elements must lie one "
                    "behind the other; only the token axis may be strided"
                )
        if not kv.is_contiguous():
            raise ValueError(f"attn_cuda got a cache of strides {kv.stride()} where it laid out {tuple(kv.shape)}")

    def _bind_plan(self, plan: CudaPlan) -> None:
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
        self, layer: AttentionLayer, qkv: tuple[Tensor, Tensor, Tensor], cache: tuple[Tensor, Tensor], plan: CudaPlan
    ) -> Tensor:
        """Keys and values to their slots; returns the queries to attend with, rotated where the layer rotates."""
        q, k, v = map(_aligned, qkv)
        need, (kv, scales) = self._need, cache
        half, cos, sin, attending = 0, None, None, q
        if layer.rope >= 0:
            cos, sin = plan.rope[layer.rope]
            half = cos.shape[1]
            size = plan.num_tokens * need.num_heads * need.head_dim
            attending = self._rotated.take(size)[:size].view(plan.num_tokens, need.num_heads, need.head_dim)
        width = 1 if half % self._types.vector() else self._types.vector()
        write = self._writes[width]
        write.set(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), cache=kv.data_ptr(), scales=scales.data_ptr())
        write.set(stride_q=q.stride(0), stride_k=k.stride(0), stride_v=v.stride(0), half=half)
        if cos is not None and sin is not None:
            write.set(rotated=attending.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr())
            write.set(stride_cos=cos.stride(0), stride_sin=sin.stride(0))
        turned = (need.num_heads if half else 0) + need.num_kv_heads
        elements = turned * (need.head_dim - half) + need.num_kv_heads * need.head_dim  # partners go with their pair
        write((plan.num_tokens, -(-elements // (width * WRITE_THREADS)), 1))
        return attending

    def _attend(
        self,
        layer: AttentionLayer,
        inputs: tuple[Tensor, Tensor, Tensor],
        plan: CudaPlan,
        results: tuple[Tensor, Tensor | None],
    ) -> None:
        """Sequences of one token, then those of more. inputs: q, cache, scales; results: out, log-sum-exp."""
        (q, kv, scales), (out, lse) = inputs, results
        window = _NO_WINDOW if layer.window is None else layer.window
        written = {
            "out": out.data_ptr(),
            "lse": None if lse is None else lse.data_ptr(),
            "stride_out": out.stride(0),
            "window": window,
        }
        read = {
            "q": q.data_ptr(),
            "stride_q": q.stride(0),
            "cache": kv.data_ptr(),
            "scales": scales.data_ptr(),
            "scale": layer.scale,
            "softcap": layer.softcap or 0.0,
        }
        if plan.num_splits:
            self._decode.set(**written, **read)
            self._decode((plan.num_seqs, self._decode_programs, plan.num_splits))
        if plan.num_splits > 1:
            self._merge.set(**written)
            self._merge((plan.num_seqs, self._need.num_heads, 1))
        if plan.num_tiles:
            self._prefill.set(**written, **read)
            self._prefill((plan.num_tiles, self._prefill_programs, 1))

    def _scales_of(self, layer: AttentionLayer) -> Tensor:
        """float32 [2, kv_heads] on the device: of keys, then of values."""
        key = (layer.k_scale, layer.v_scale)
        known = self._scales.get(key)
        if known is None:
            rows = [np.broadcast_to(np.asarray(scale, dtype=np.float32), self._need.num_kv_heads) for scale in key]
            known = self._scales[key] = uploaded(np.stack(rows), self._device)
        return known

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: NDArray[np.int64]) -> None:
        """Block pairs[i, 0] of every source to block pairs[i, 1] of its target."""
        if not len(pairs) or not sources:
            return
        moved = uploaded(pairs, self._device)
        read, write = self._addresses.of(sources), self._addresses.of(targets)
        self._copy_kernel.set(sources=read.data_ptr(), targets=write.data_ptr(), pairs=moved.data_ptr())
        self._copy_kernel((len(pairs) * self._chunks, len(sources), 1))


def _is_aligned(tensor: Tensor) -> bool:
    """Whether every token's row begins at a whole vector."""
    return tensor.data_ptr() % VECTOR_BYTES == 0 and tensor.stride(0) * tensor.element_size() % VECTOR_BYTES == 0


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or where rows begin between vectors (rare: an odd offset into a buffer) a copy."""
    return tensor if _is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)
