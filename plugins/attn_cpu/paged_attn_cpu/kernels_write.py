"""The first half of a layer's call: rotate, write K and V to their slots, make queries.

Rotation computes in fp32 with separately rounded products, exactly as `x * cos + rotate_half(x) * sin` in torch, and
rounds once to the activation dtype, so that fused and unfused runs see the same bits. Queries go to scratch [kv_heads,
tokens, group, width], padded with zeros: multiplied by the softmax scale in fp32, or as bf16 as they are for kernels in
pairs, which scale the scores. The caller's tensors are left alone. Padding columns of the cache are written as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paged_attn_cpu.elements import narrowed, row_offset
from paged_attn_cpu.kernels_cells import store_key, store_value
from paged_attn_cpu.microkernels_rows import convert_row, rotate_row
from paged_attn_cpu.vectors import kernel

ONE = np.float32(1.0)


@kernel
def store_row(source: Any, start: Any, target: Any, offset: Any, angles: Any, shape: Any, scale: Any) -> Any:
    """Write one row in the target's dtype, rotated, scaled (K, V: by one), padded with zeros. shape: (head_dim, width).

    angles: (cos, sin, first element of this token's row in both, half the rotary dimension; 0 = no rotation).
    """
    head_dim, width = shape
    cos, sin, row, half = angles
    read, written = source[0], target[0]
    here = (source.ctypes.data + start * source.itemsize, target.ctypes.data + offset * target.itemsize)
    if half > 0:
        rotate_row(read, written, here, (cos.ctypes.data + row * 4, sin.ctypes.data + row * 4), half, scale)
    rest = (here[0] + 2 * half * source.itemsize, here[1] + 2 * half * target.itemsize)
    convert_row(read, written, rest, head_dim - 2 * half, scale)
    for i in range(head_dim, width):
        target[offset + i] = narrowed(np.float32(0.0), written)


@kernel
def write_token(token: Any, slot: Any, inputs: Any, cache: Any, angles: Any, sizes: Any, spread: Any) -> Any:
    """Write one token's K and V; a negative slot is padding and is skipped.

    inputs: (k, v, k_stride, v_stride); sizes: (kv_heads, head_dim, width, block_size); spread: whether the cache
    consists of cells, and a row of its elements for use here.
    """
    if slot < 0:
        return
    k, v, k_stride, v_stride = inputs
    kv_heads, head_dim, width, block_size = sizes
    no_angles, begin = (angles[0], angles[1], angles[2], np.int64(0)), np.int64(0)
    block, position = slot // block_size, slot % block_size
    to_cells, row = spread
    shape, start, source = (kv_heads, block_size, width), np.int64(cache.ctypes.data), np.int64(row.ctypes.data)
    for head in range(kv_heads):
        if to_cells:
            store_row(k, token * k_stride + head * head_dim, row, begin, angles, (head_dim, width), ONE)
            store_key(source, start + row_offset(block, 0, head, 0, shape) * 2, position, width)
            store_row(v, token * v_stride + head * head_dim, row, begin, no_angles, (head_dim, width), ONE)
            store_value(source, start + row_offset(block, 1, head, 0, shape) * 2, position, width)
        else:
            for_k, for_v = row_offset(block, 0, head, position, shape), row_offset(block, 1, head, position, shape)
            store_row(k, token * k_stride + head * head_dim, cache, for_k, angles, (head_dim, width), ONE)
            store_row(v, token * v_stride + head * head_dim, cache, for_v, no_angles, (head_dim, width), ONE)
