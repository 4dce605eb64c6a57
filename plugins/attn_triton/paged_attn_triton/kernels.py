"""Kernels of one shape, bound to a layer: everything that does not change between steps is settled here, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paged_attn_triton.decode import decode_kernel, merge_kernel
from paged_attn_triton.launch import Launch
from paged_attn_triton.prefill import prefill_kernel
from paged_attn_triton.write import write_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from paged_attn_triton.shapes import Shape
    from paged_core.api.attention import AttentionLayer


@dataclass(frozen=True, slots=True)
class BoundLayer:
    """One layer's launches and arguments. Scales of KV heads: float32 [num_kv_heads], None but for e4m3."""

    write: Launch
    decode: Launch
    merge: Launch
    prefill: Launch
    half: int
    rope: int
    scale: float
    softcap: float
    window: int
    k_scales: Tensor | None
    v_scales: Tensor | None


def bind(shape: Shape, layer: AttentionLayer, half: int, device: torch.device) -> BoundLayer:
    """The layer's kernels; `half`: elements of a head that are rotated with as many others, 0 = none are.

    Raises ValueError for scales that the cache has no use for.
    """
    if not shape.in_codes and (layer.k_scale, layer.v_scale) != (1.0, 1.0):
        raise ValueError(
            f"attn_triton got k_scale {layer.k_scale} and v_scale {layer.v_scale} for a cache of {shape.kv_dtype}, "
            "which holds unscaled numbers"
        )
    flags = (layer.window is not None, layer.softcap is not None)
    decode, prefill = shape.decode_config, shape.prefill_config(*flags)
    return BoundLayer(
        Launch(write_kernel, shape.write_constants(half), 4, 1),
        Launch(decode_kernel, shape.decode_constants(*flags), decode.warps, decode.stages),
        Launch(merge_kernel, shape.merge_constants(flags[0]), 4, 1),
        Launch(prefill_kernel, shape.prefill_constants(*flags), prefill.warps, prefill.stages),
        half,
        layer.rope,
        float(layer.scale),
        float(layer.softcap or 0.0),
        layer.window or 0,
        _scales(shape, layer.k_scale, device),
        _scales(shape, layer.v_scale, device),
    )


def _scales(shape: Shape, scale: float | tuple[float, ...], device: torch.device) -> Tensor | None:
    """One number a KV head."""
    if not shape.in_codes:
        return None
    scales = (scale,) * shape.num_kv_heads if isinstance(scale, int | float) else scale
    if len(scales) != shape.num_kv_heads:
        raise ValueError(f"attn_triton got {len(scales)} scales for {shape.num_kv_heads} KV heads")
    return torch.tensor(scales, dtype=torch.float32, device=device)
