"""The first half of a layer's call: rotate, write K and V to their slots, make queries.

Rotation computes in fp32 with separately rounded products, exactly as `x * cos + rotate_half(x) * sin` in torch, and
rounds once to the activation dtype, so that fused and unfused runs see the same bits. Queries go to scratch [kv_heads,
tokens, group, width], padded with zeros: multiplied by the softmax scale in fp32, or as bf16 as they are for kernels in
pairs, which scale the scores. The caller's tensors are left alone. Padding columns of the cache are written as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paged_attn_cpu.elements import narrowed, row_offset, widened
from paged_attn_cpu.vectors import kernel

ONE = np.float32(1.0)


@kernel
def rotated(source: Any, start: Any, index: Any, angles: Any) -> Any:
    """Element `index` of the row at `start`, rotated and rounded to the source's dtype, as float32.

    angles: (cos, sin, first element of this token's row in both, half the rotary dimension; 0 = no rotation).
    """
    cos, sin, row, half = angles
    x = widened(source[start + index])
    if index >= 2 * half:
        return x
    if index < half:
        y = x * cos[row + index] - widened(source[start + index + half]) * sin[row + index]
    else:
        y = x * cos[row + index - half] + widened(source[start + index - half]) * sin[row + index - half]
    return widened(narrowed(y, source[0]))


@kernel
def store_row(source: Any, start: Any, target: Any, offset: Any, angles: Any, shape: Any, scale: Any) -> Any:
    """Write one row in the target's dtype, rotated (V: half 0), scaled (K, V: by one). shape: (head_dim, width)."""
    head_dim, width = shape
    half = angles[3]
    kind = target[0]
    for i in range(half):
        target[offset + i] = narrowed(rotated(source, start, i, angles) * scale, kind)
    for i in range(half, 2 * half):
        target[offset + i] = narrowed(rotated(source, start, i, angles) * scale, kind)
    for i in range(2 * half, head_dim):
        target[offset + i] = narrowed(widened(source[start + i]) * scale, kind)
    for i in range(head_dim, width):
        target[offset + i] = narrowed(np.float32(0.0), kind)


@kernel
def write_token(token: Any, slot: Any, inputs: Any, cache: Any, angles: Any, sizes: Any) -> Any:
    """Write one token's K and V; a negative slot is padding and is skipped.

    inputs: (k, v, k_stride, v_stride); sizes: (kv_heads, head_dim, width, block_size).
    """
    if slot < 0:
        return
    k, v, k_stride, v_stride = inputs
    kv_heads, head_dim, width, block_size = sizes
    no_angles = (angles[0], angles[1], angles[2], 0)
    block, position = slot // block_size, slot % block_size
    for head in range(kv_heads):
        for_k = row_offset(block, 0, head, position, (kv_heads, block_size, width))
        for_v = row_offset(block, 1, head, position, (kv_heads, block_size, width))
        store_row(k, token * k_stride + head * head_dim, cache, for_k, angles, (head_dim, width), ONE)
        store_row(v, token * v_stride + head * head_dim, cache, for_v, no_angles, (head_dim, width), ONE)
