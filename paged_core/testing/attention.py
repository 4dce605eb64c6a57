"""DeviceAttention: attention that looks at nothing but what the executor has put on the device; for tests of runners.

What `forward` launches depends on the sizes of the batch alone (`graphs`). Slow: every query meets every key a table
has room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout
from paged_core.device.transfer import Transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch, DeviceBatch
    from paged_core.device.stream import Accelerator


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A batch's arrays on the device, and its rotary tables."""

    there: DeviceBatch
    rope: list[tuple[Tensor, Tensor]]


class DeviceAttention(Attention):
    """Plain attention over [blocks, 2, block_size, kv_heads, head_dim]; rotates where the need asks for fused_rope."""

    def __init__(self, need: AttentionNeed, accelerator: Accelerator) -> None:
        self._need = need
        self._rotates = "fused_rope" in need.required
        self._transfers = Transfers(torch.device("cuda"), copy_blocks, accelerator, staging_bytes=1 << 14)
        self._accelerator = accelerator
        self.num_plans = 0
        self.num_shared = 0  # of shared prefixes that plans were told of

    def layout(self, num_blocks: int) -> KVLayout:
        """A block is one contiguous piece."""
        need = self._need
        shape = (num_blocks, 2, need.block_size, need.num_kv_heads, need.head_dim)
        dtype: torch.dtype = getattr(torch, need.kv_dtype)
        per_block = 2 * need.block_size * need.num_kv_heads * need.head_dim * dtype.itemsize
        return KVLayout(shape, need.kv_dtype, block_axis=0, bytes_per_block=per_block)

    def plan(self, batch: Batch) -> DevicePlan:
        """Takes the executor's arrays; there are no others."""
        assert batch.on_device is not None
        self.num_plans += 1
        self.num_shared += len(batch.shared_prefixes)
        return DevicePlan(batch.on_device, batch.rope)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: DevicePlan, out: Tensor
    ) -> None:
        """Write, then attend; padding gives zeros."""
        there, size = plan.there, self._need.block_size
        if self._rotates and layer.rope >= 0:
            q, k = _rotated(q, *plan.rope[layer.rope]), _rotated(k, *plan.rope[layer.rope])
        written = (there.slots >= 0).nonzero().squeeze(1)
        slots = there.slots[written]
        kv[slots // size, 0, slots % size] = k[written].to(kv.dtype)
        kv[slots // size, 1, slots % size] = v[written].to(kv.dtype)
        seq = torch.searchsorted(
            there.query_start[1:].contiguous(), torch.arange(len(q), dtype=torch.int32), right=True
        )
        length = there.seq_lens[seq]
        width = there.tables.shape[1]
        owned = torch.arange(width) < (length[:, None] + size - 1) // size
        blocks = there.tables[there.rows[seq].long()].long().where(owned, torch.zeros((), dtype=torch.int64))
        key = torch.arange(width * size)
        seen = (key <= there.positions[:, None]) & (key < length[:, None])
        if layer.window is not None:
            seen &= key > there.positions[:, None] - layer.window
        keys, values = (kv[blocks, side].float().flatten(1, 2) for side in (0, 1))  # [tokens, keys, kv_heads, head_dim]
        group = q.shape[1] // keys.shape[2]
        keys, values = keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)
        values = values.masked_fill(~seen[:, :, None, None], 0.0)
        logits = torch.einsum("thd,tkhd->thk", q.float(), keys) * layer.scale
        if layer.softcap is not None:
            logits = torch.tanh(logits / layer.softcap) * layer.softcap
        weights = logits.masked_fill(~seen[:, None, :], -torch.inf).softmax(-1).nan_to_num(0.0)
        out.copy_(torch.einsum("thk,tkhd->thd", weights, values))

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """On the current stream."""
        pairs = np.array(copies, dtype=np.int64)
        self._accelerator.launch(lambda: copy_blocks(caches, caches, pairs))

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Beside the steps."""
        self._transfers.swap(sources, targets, pairs)


def copy_blocks(sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: NDArray[np.int64]) -> None:
    """A backend's own copy of blocks: every source is read before any target of its layer is written."""
    read, write = (torch.from_numpy(np.ascontiguousarray(column)) for column in pairs.T)
    for source, target in zip(sources, targets, strict=True):
        target[write] = source[read]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[1]
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :].float()
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)
