"""TorchAttention: write by slot, gather by block table, softmax in float32.

Cache of a layer: [2, blocks, block_size, kv_heads, head_dim]; index 0 holds keys, 1 values. In a cache of uint8 the
last axis is longer (codes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_attn_torch.codes import ROW_BYTES, decode, encode
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch

_E4M3_MOST = 448.0
_TILE = 256  # queries of one sequence attended at once: bounds the logits to [heads, 256, context]


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive queries of one sequence: flat rows `begin` .. `end - 1`, of which the first has position `first`.

    key_slots int64 [first + end - begin]: where the keys of positions 0, 1, ... lie. Slots behind the last query are
    never read, so what they hold does not matter.
    """

    begin: int
    end: int
    first: int
    key_slots: Tensor


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """One step. `slots` int64: where to write; `written`: the tokens that have one, None = all of them."""

    tiles: list[Tile]
    slots: Tensor
    written: Tensor | None


class TorchAttention(Attention):
    """One sequence at a time, tile by tile; a sequence's numbers do not depend on its neighbours at all."""

    def __init__(self, need: AttentionNeed) -> None:
        self._need = need
        self._device = torch.device(need.device)
        self._returns_lse = "lse" in need.required
        self._kv_dtype: torch.dtype = getattr(torch, need.kv_dtype)
        self._in_codes = self._kv_dtype == torch.uint8
        self._scales: dict[float | tuple[float, ...], Tensor] = {}

    def layout(self, num_blocks: int) -> KVLayout:
        """[2, blocks, block_size, kv_heads, head_dim], or codes and what scales them in the last axis."""
        need = self._need
        width = need.head_dim + (ROW_BYTES if self._in_codes else 0)
        shape = (2, num_blocks, need.block_size, need.num_kv_heads, width)
        per_block = 2 * need.block_size * need.num_kv_heads * width * self._kv_dtype.itemsize
        return KVLayout(shape, need.kv_dtype, block_axis=1, bytes_per_block=per_block)

    def plan(self, batch: Batch) -> TorchPlan:
        """Turn tables into slots, once for all layers."""
        tiles = []
        for index in range(batch.num_seqs):
            start, stop = int(batch.query_start[index]), int(batch.query_start[index + 1])
            length = int(batch.seq_lens[index])
            key_slots = self._key_slots(batch, index, length)
            for begin in range(start, stop, _TILE):
                end = min(begin + _TILE, stop)
                tiles.append(Tile(begin, end, length - (stop - begin), key_slots[: length - (stop - end)]))
        slots = batch.slots[: batch.num_tokens]
        if (slots >= 0).all():
            return TorchPlan(tiles, self._on_device(slots), None)
        written = np.flatnonzero(slots >= 0)
        return TorchPlan(tiles, self._on_device(slots[written]), self._on_device(written))

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: TorchPlan, out: Tensor
    ) -> Tensor | None:
        """Write k and v, then attend. Keys are stored divided by `k_scale`, values by `v_scale`."""
        keys, values = kv.flatten(1, 2)  # each [slots, kv_heads, head_dim], a view
        if plan.written is not None:
            k, v = k[plan.written], v[plan.written]
        keys[plan.slots] = self._stored(k, layer.k_scale)
        values[plan.slots] = self._stored(v, layer.v_scale)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if self._returns_lse else None
        for tile in plan.tiles:
            self._attend(layer, tile, q, (keys, values), out, lse)
        return lse

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """All sources are read before any target is written."""
        sources = torch.tensor([copy.src for copy in copies], dtype=torch.int64, device=self._device)
        targets = torch.tensor([copy.dst for copy in copies], dtype=torch.int64, device=self._device)
        for cache in caches:
            cache[:, targets] = cache[:, sources]

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Blocking copies, a layer at a time."""
        if not sources:
            return
        read = torch.tensor([pair.src for pair in pairs], dtype=torch.int64, device=sources[0].device)
        write = torch.tensor([pair.dst for pair in pairs], dtype=torch.int64, device=targets[0].device)
        for source, target in zip(sources, targets, strict=True):
            target[:, write] = source[:, read].to(target.device)

    def _attend(
        self,
        layer: AttentionLayer,
        tile: Tile,
        q: Tensor,
        cache: tuple[Tensor, Tensor],
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        """One tile against its context, all heads at once; float32 throughout.

        Query heads are grouped by the key-value head they share: rows of a head's matrix are (group, query).
        """
        need, queries, context = self._need, tile.end - tile.begin, len(tile.key_slots)
        group = need.num_heads // need.num_kv_heads
        oldest = 0 if layer.window is None else max(0, tile.first - layer.window + 1)
        key_slots = tile.key_slots[oldest:]
        keys = self._read(cache[0][key_slots], layer.k_scale).permute(1, 2, 0)  # [kv_heads, head_dim, keys]
        values = self._read(cache[1][key_slots], layer.v_scale).transpose(0, 1)  # [kv_heads, keys, head_dim]
        # a copy of its own: products on a view could round by where it lies in memory
        rows = q[tile.begin : tile.end].to(torch.float32, copy=True)
        rows = rows.view(queries, need.num_kv_heads, group, need.head_dim).permute(1, 2, 0, 3)
        logits = rows.reshape(need.num_kv_heads, group * queries, need.head_dim) @ keys
        logits = logits.view(need.num_kv_heads, group, queries, -1) * layer.scale
        if layer.softcap is not None:
            logits = torch.tanh(logits / layer.softcap) * layer.softcap
        if queries > 1:
            logits = logits.masked_fill(self._hidden(layer, tile.first, oldest, context), -torch.inf)
        attended = logits.softmax(-1).view(need.num_kv_heads, group * queries, -1) @ values
        attended = attended.view(need.num_kv_heads, group, queries, need.head_dim).permute(2, 0, 1, 3)
        out[tile.begin : tile.end] = attended.reshape(queries, need.num_heads, need.head_dim)
        if lse is not None:
            lse[tile.begin : tile.end] = logits.logsumexp(-1).permute(2, 0, 1).reshape(queries, need.num_heads)

    def _stored(self, rows: Tensor, scale: float | tuple[float, ...]) -> Tensor:
        """Rows [tokens, kv_heads, head_dim] as the cache keeps them."""
        if scale != 1.0:
            rows = rows.float() / self._scale(scale)
        if self._kv_dtype == torch.float8_e4m3fn:
            rows = rows.float().clamp(-_E4M3_MOST, _E4M3_MOST)  # beyond it, some versions of torch give NaN
        return encode(rows) if self._in_codes else rows.to(self._kv_dtype)

    def _read(self, stored: Tensor, scale: float | tuple[float, ...]) -> Tensor:
        rows = decode(stored) if self._in_codes else stored.float()
        return rows if scale == 1.0 else rows * self._scale(scale)

    def _scale(self, scale: float | tuple[float, ...]) -> Tensor:
        """float32 [1 or kv_heads, 1] on the device, made once."""
        if scale not in self._scales:
            self._scales[scale] = torch.tensor(scale, dtype=torch.float32, device=self._device).view(-1, 1)
        return self._scales[scale]

    def _hidden(self, layer: AttentionLayer, first: int, oldest: int, context: int) -> Tensor:
        """Which keys a query may not see, bool [queries, keys]: later ones, and those its window has left behind."""
        query = torch.arange(first, context, device=self._device)[:, None]
        key = torch.arange(oldest, context, device=self._device)[None, :]
        hidden = key > query
        return hidden if layer.window is None else hidden | (key <= query - layer.window)

    def _key_slots(self, batch: Batch, index: int, length: int) -> Tensor:
        size = self._need.block_size
        blocks = batch.tables[batch.rows[index], : -(-length // size)].astype(np.int64)
        return self._on_device((blocks[:, None] * size + np.arange(size)).reshape(-1)[:length])

    def _on_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.tensor(array, device=self._device)  # a copy: the batch may be read-only
