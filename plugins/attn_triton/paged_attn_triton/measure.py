"""How long a shape's decode or prefill takes on the GPU at hand: what tuning asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_attn_triton.attention import TritonAttention
from paged_core.api.attention import AttentionLayer
from paged_core.api.batch import Batch
from paged_core.device.stream import CudaAccelerator

if TYPE_CHECKING:
    from torch import Tensor

    from paged_attn_triton.shapes import Shape
    from paged_attn_triton.splits import SplitRule
    from paged_core.api.attention import AttentionNeed
    from paged_core.device.grids import DevicePlan

STEPS = {"decode": (32, 4096, 1), "prefill": (2, 2048, 2048)}
"""Sequences, length and new tokens of each: enough for a large GPU, little enough for its memory."""
_WARM_UPS, _TIMED = 3, 10


class Stopwatch:
    """Seconds of a step, by shape and kernel, between two events on the device."""

    def __init__(self, need: AttentionNeed, splits: SplitRule) -> None:
        self._need = need
        self._splits = splits
        self._device = CudaAccelerator(torch.device(need.device))

    def __call__(self, shape: Shape, kernel: str) -> float:
        """Of one step as `shape` cuts it, the mean of several."""
        step = step_of(
            TritonAttention(replace(self._need, max_rows=0), shape, self._splits), self._need, *STEPS[kernel]
        )
        for _ in range(_WARM_UPS):
            step()
        start, end = self._device.event(timed=True), self._device.event(timed=True)
        start.record()
        for _ in range(_TIMED):
            step()
        end.record()
        end.synchronize()
        return end.seconds_since(start) / _TIMED


@dataclass(frozen=True, slots=True)
class Step:
    """One layer of a step, ready to be run again and again."""

    backend: TritonAttention
    layer: AttentionLayer
    plan: DevicePlan
    qkv: tuple[Tensor, Tensor, Tensor]
    cache: Tensor
    out: Tensor

    def __call__(self) -> None:
        """Queued, not waited for."""
        self.backend.forward(self.layer, *self.qkv, self.cache, self.plan, self.out)


def step_of(backend: TritonAttention, need: AttentionNeed, num_seqs: int, length: int, num_new: int) -> Step:
    """A step of equal sequences in blocks of their own; those of the cache are zero."""
    length = min(length, need.max_len or length)
    num_new = min(num_new, length)
    num_tokens, per_seq = num_seqs * num_new, -(-length // need.block_size)
    tables = np.arange(num_seqs * per_seq, dtype=np.int32).reshape(num_seqs, per_seq)
    positions = np.tile(np.arange(length - num_new, length, dtype=np.int32), num_seqs)
    blocks = tables[np.arange(num_seqs).repeat(num_new), positions // need.block_size]
    batch = Batch(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        query_start=np.arange(0, num_tokens + 1, num_new, dtype=np.int32),
        seq_lens=np.full(num_seqs, length, dtype=np.int32),
        rows=np.arange(num_seqs, dtype=np.int32),
        tables=tables,
        positions=positions,
        slots=blocks.astype(np.int64) * need.block_size + positions % need.block_size,
    )
    layout = backend.layout(num_seqs * per_seq)
    cache = torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype), device=need.device)
    q, k, v = (
        torch.randn(num_tokens, heads, need.head_dim, device=need.device).to(getattr(torch, need.dtype))
        for heads in (need.num_heads, need.num_kv_heads, need.num_kv_heads)
    )
    layer = AttentionLayer(0, need.head_dim**-0.5)
    return Step(backend, layer, backend.plan(batch), (q, k, v), cache, torch.empty_like(q))
