"""The attention oracle: one dense softmax a head in float64, and nothing else to get wrong.

`attend` follows the semantics of `paged_core.api.attention` word for word. `rotate` is the rotation a decoder applies
when its backend does not (`fused_rope`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.attention import AttentionLayer


def visible(num_queries: int, num_keys: int, window: int | None) -> Tensor:
    """Which keys the last `num_queries` of `num_keys` positions see, bool [queries, keys].

    Position p sees j <= p, and with a window w only p - w < j.
    """
    position = torch.arange(num_keys - num_queries, num_keys)[:, None]
    key = torch.arange(num_keys)[None, :]
    seen = key <= position
    return seen if window is None else seen & (key > position - window)


def attend(q: Tensor, k: Tensor, v: Tensor, layer: AttentionLayer) -> tuple[Tensor, Tensor]:
    """Attention of the last len(q) positions of one sequence: out float64, and log-sum-exp float64 [queries, heads].

    q [queries, heads, head_dim]; k, v [context, kv_heads, head_dim], the whole sequence. Query head h reads key-value
    head h // (heads / kv_heads).
    """
    group = q.shape[1] // k.shape[1]
    keys = k.double().repeat_interleave(group, dim=1)  # [context, heads, head_dim]
    values = v.double().repeat_interleave(group, dim=1)
    logits = torch.einsum("qhd,khd->qhk", q.double(), keys) * layer.scale
    if layer.softcap is not None:
        logits = layer.softcap * torch.tanh(logits / layer.softcap)
    logits = logits.masked_fill(~visible(len(q), len(k), layer.window)[:, None, :], -math.inf)
    return torch.einsum("qhk,khd->qhd", logits.softmax(-1), values), logits.logsumexp(-1)


def coded(rows: Tensor) -> Tensor:
    """Rows [..., n] as the contract's reference of a uint8 cache reads them back, float64."""
    x = rows.double()
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = ((most - least) / 255).float().double()
    return least + step * ((x - least) / step.clamp_min(1e-300)).round().clamp(0, 255)


def narrowed(rows: Tensor, scale: float | tuple[float, ...]) -> Tensor:
    """Rows [tokens, kv_heads, n] as a cache of float8_e4m3fn reads them back, float64; one scale, or one a KV head."""
    scales = torch.tensor(scale, dtype=torch.float32).view(-1, 1)
    stored = (rows.float() / scales).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return stored.double() * scales.double()


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over a context from attention over its pieces: (out, log-sum-exp) each, as cascades merge them."""
    lse = torch.stack([part_lse.double() for _, part_lse in parts])  # [parts, queries, heads]
    whole = lse.logsumexp(0)
    weights = (lse - whole).exp()[..., None]
    return (weights * torch.stack([out.double() for out, _ in parts])).sum(0), whole


def rope_table(positions: Tensor, rotary_dim: int, theta: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [positions, rotary_dim / 2]."""
    frequencies = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = positions.double()[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate dimension i with dimension i + half, over the leading 2 * half dimensions; rounded once to x's dtype.

    x [tokens, heads, head_dim]; cos, sin float32 [tokens, half].
    """
    half = cos.shape[1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([turned.to(x.dtype), x[..., 2 * half :]], dim=-1)
