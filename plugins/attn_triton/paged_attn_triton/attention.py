"""TritonAttention: one launch to write, one or two to attend, and one to merge where contexts were cut.

Cache of a layer: [num_blocks, 2, num_kv_heads, block_size, head_dim]; index 0 of the second axis holds keys, 1 values.
A block is one contiguous piece, so copies and swaps move whole pieces, and so is what a KV head reads of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_attn_triton.copy import copy_kernel
from paged_attn_triton.kernels import BoundLayer, bind
from paged_attn_triton.launch import Launch
from paged_attn_triton.shapes import COPIED_WORDS
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout
from paged_core.device.grids import DevicePlan, plan_of
from paged_core.device.scratch import Addresses, Scratch
from paged_core.device.transfer import Transfers
from paged_core.device.upload import uploaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_attn_triton.shapes import Shape
    from paged_attn_triton.splits import SplitRule
    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch


class TritonAttention(Attention):
    """One need's kernels, launched on torch's current stream. The host computes grids and waits for nothing."""

    def __init__(self, need: AttentionNeed, shape: Shape, splits: SplitRule) -> None:
        self._need = need
        self._shape = shape
        self._splits = splits
        self._device = device = torch.device(need.device)
        self._returns_lse = "lse" in need.required
        self._layers: dict[tuple[AttentionLayer, int], BoundLayer] = {}
        # scratch for the largest step, where the need says what that is
        parts = need.num_heads * max((n * splits.num_splits(n) for n in range(1, need.max_rows + 1)), default=0)
        rotated = need.num_heads * need.head_dim * (need.token_budget if "fused_rope" in need.required else 0)
        self._parts = Scratch(torch.float32, device, parts * need.head_dim)
        self._parts_lse = Scratch(torch.float32, device, parts)
        self._rotated = Scratch(getattr(torch, need.dtype), device, rotated)
        self._copy_kernel = Launch(copy_kernel, shape.copy_constants(), 4, 1)
        self._addresses = Addresses(device)
        self._transfers = Transfers(device, self._copy)

    def layout(self, num_blocks: int) -> KVLayout:
        """[num_blocks, 2, num_kv_heads, block_size, head_dim]."""
        need = self._need
        shape = (num_blocks, 2, need.num_kv_heads, need.block_size, need.head_dim)
        return KVLayout(shape, need.kv_dtype, block_axis=0, bytes_per_block=self._shape.block_bytes)

    def plan(self, batch: Batch) -> DevicePlan:
        """Grids, and the batch's arrays on the device."""
        return plan_of(batch, self._device, self._splits.num_splits, self._shape.queries_per_tile)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: DevicePlan, out: Tensor
    ) -> Tensor | None:
        """Write k and v, then attend. Raises ValueError for tensors that kernels cannot read as they lie."""
        self._check(q, k, v, kv, out)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if self._returns_lse else None
        if not plan.num_tokens:
            return lse
        half = plan.rope[layer.rope][0].shape[1] if layer.rope >= 0 else 0
        bound = self._layers.get((layer, half))
        if bound is None:
            bound = self._layers[layer, half] = bind(self._shape, layer, half, self._device)
        cache = kv.view(torch.uint8) if self._shape.in_codes else kv
        q = self._write(bound, (q, k, v), cache, plan)
        if plan.num_splits:
            self._decode(bound, q, cache, plan, (out, lse))
        if plan.num_tiles:
            self._prefill(bound, q, cache, plan, (out, lse))
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
            if tensor.stride(2) != 1 or tensor.stride(1) != head_dim:
                raise ValueError(
                    f"attn_triton got {name} of strides {tensor.stride()}: heads of {head_dim} elements must lie one "
                    "behind the other; only the token axis may be strided"
                )
        if not kv.is_contiguous():
            raise ValueError(f"attn_triton got a cache of strides {kv.stride()} where it laid out {tuple(kv.shape)}")

    def _write(self, bound: BoundLayer, qkv: tuple[Tensor, Tensor, Tensor], cache: Tensor, plan: DevicePlan) -> Tensor:
        """Keys and values to their slots; returns the queries to attend with, rotated where the layer rotates."""
        q, k, v = qkv
        need, arrays = self._need, plan.arrays
        cos, sin, rotated, num_heads = None, None, None, need.num_kv_heads
        strides = (q.stride(0), k.stride(0), v.stride(0), 0, 0)
        if bound.half:
            cos, sin = plan.rope[bound.rope]
            num_heads += need.num_heads
            strides = (*strides[:3], cos.stride(0), sin.stride(0))
            elements = plan.num_tokens * need.num_heads * need.head_dim
            rotated = self._rotated.take(elements)[:elements].view(plan.num_tokens, need.num_heads, need.head_dim)
        inputs = (q, k, v, arrays.slots, cos, sin, bound.k_scales, bound.v_scales)
        grid = (-(-plan.num_tokens // self._shape.tokens_per_write), num_heads)
        bound.write(grid, *inputs, cache, rotated, *strides, plan.num_tokens)
        return q if rotated is None else rotated

    def _decode(
        self, bound: BoundLayer, q: Tensor, cache: Tensor, plan: DevicePlan, results: tuple[Tensor, Tensor | None]
    ) -> None:
        """One program for every sequence, KV head and part; then the parts of longer contexts are merged."""
        need, arrays, split_tokens = self._need, plan.arrays, self._splits.split_tokens
        num_parts = plan.num_seqs * need.num_heads * plan.num_splits if plan.num_splits > 1 else 0
        parts, parts_lse = self._parts.take(num_parts * need.head_dim), self._parts_lse.take(num_parts)
        written = (*results, parts, parts_lse)
        steps = (arrays.query_start, arrays.seq_lens)
        strides = (results[0].stride(0), q.stride(0), arrays.tables.stride(0))
        bound.decode(
            (need.num_kv_heads, plan.num_seqs, plan.num_splits),
            *(*written, q, cache, bound.k_scales, bound.v_scales, *steps, arrays.rows, arrays.tables),
            *(*strides, bound.scale, bound.softcap, bound.window, split_tokens),
        )
        if plan.num_splits > 1:
            rule = (strides[0], plan.num_splits, bound.window, split_tokens)
            bound.merge((need.num_heads, plan.num_seqs), *written, *steps, *rule)

    def _prefill(
        self, bound: BoundLayer, q: Tensor, cache: Tensor, plan: DevicePlan, results: tuple[Tensor, Tensor | None]
    ) -> None:
        """One program for every tile of queries and KV head."""
        arrays = plan.arrays
        strides = (results[0].stride(0), q.stride(0), arrays.tables.stride(0))
        bound.prefill(
            (plan.num_tiles, self._need.num_kv_heads),
            *(*results, q, cache, bound.k_scales, bound.v_scales),
            *(arrays.query_start, arrays.seq_lens, arrays.rows, arrays.tables),
            *(*strides, bound.scale, bound.softcap, bound.window, plan.num_seqs),
        )

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: NDArray[np.int64]) -> None:
        """Block pairs[i, 0] of every source to block pairs[i, 1] of its target."""
        if not len(pairs) or not sources:
            return
        grid = (len(pairs), len(sources), -(-self._shape.block_bytes // (4 * COPIED_WORDS)))
        moved = uploaded(pairs, self._device)
        self._copy_kernel(grid, self._addresses.of(sources), self._addresses.of(targets), moved)
