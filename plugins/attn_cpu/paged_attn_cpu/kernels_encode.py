"""Rows of K and V as codes in their cells, queries as digits; where each byte lies is told in kernels_codes.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu.coding import digit_row, encode_row
from paged_attn_cpu.elements import pointer
from paged_attn_cpu.kernels_cells import SCALING_BYTES, cell_offset
from paged_attn_cpu.kernels_write import ONE, store_row
from paged_attn_cpu.microkernels_pairs import CELL
from paged_attn_cpu.quads import QUAD
from paged_attn_cpu.vectors import LANES, kernel

MIDDLE_CODE = np.float32(128.0)


@kernel
def store_key(codes: Any, cell: Any, lane: Any, width: Any) -> Any:
    """Spread a row's codes over its cell of K. codes, cell: addresses; lane: the key's place in the cell."""
    read = carray(pointer(codes), (width // QUAD,), np.int32)
    written = carray(pointer(cell), (width // QUAD * LANES,), np.int32)
    for i in range(width // QUAD):
        written[i * LANES + lane] = read[i]


@kernel
def store_value(codes: Any, cell: Any, lane: Any, width: Any) -> Any:
    """Spread a row's codes, less 128, over its cell of V."""
    read = carray(pointer(codes), (width,), np.uint8)
    written = carray(pointer(cell), (CELL * width,), np.uint8)
    start = lane // QUAD * LANES * QUAD + lane % QUAD
    for chunk in range(width // LANES):
        for i in range(LANES):
            written[start + chunk * CELL * LANES + i * QUAD] = read[chunk * LANES + i] ^ np.uint8(0x80)


@kernel
def encode(source: Any, start: Any, angles: Any, shape: Any, scratch: Any) -> Any:
    """Step and minimum of a row, rotated; its codes go behind the row in scratch. shape: (head_dim, width)."""
    head_dim, width = shape
    row, address = scratch
    store_row(source, start, row, 0, angles, (head_dim, head_dim), ONE)
    for i in range(head_dim, width):  # columns that nobody reads must not widen the range
        row[i] = row[0]
    return encode_row(address, address + width * 4, width // LANES)


@kernel
def write_codes(token: Any, slot: Any, inputs: Any, cache: Any, angles: Any, sizes: Any, scratch: Any) -> Any:
    """Code one token's K and V; a negative slot is padding and is skipped.

    inputs: (k, v, k_stride, v_stride); cache: its address; sizes: (kv_heads, head_dim, width, block_size); scratch:
    (fp32 for a row and its codes, their address).
    """
    if slot < 0:
        return
    k, v, k_stride, v_stride = inputs
    kv_heads, head_dim, width, block_size = sizes
    no_angles = (angles[0], angles[1], angles[2], 0)
    block, position = slot // block_size, slot % block_size
    cell, lane, shape = position // CELL, position % CELL, (kv_heads, block_size // CELL)
    bytes_of, codes = (CELL * width + SCALING_BYTES, CELL * width), scratch[1] + width * 4
    for head in range(kv_heads):
        keys = cache + cell_offset(block, 0, head, cell, shape, bytes_of)
        scaling = carray(pointer(keys + CELL * width), (4 * CELL,), np.float32)
        step, least = encode(k, token * k_stride + head * head_dim, angles, (head_dim, width), scratch)
        store_key(codes, keys, lane, width)
        scaling[lane], scaling[CELL + lane] = step, least
        step, least = encode(v, token * v_stride + head * head_dim, no_angles, (head_dim, width), scratch)
        store_value(codes, cache + cell_offset(block, 1, head, cell, shape, bytes_of), lane, width)
        scaling[2 * CELL + lane], scaling[3 * CELL + lane] = step, least + MIDDLE_CODE * step


@kernel
def write_digits(query: Any, target: Any, angles: Any, shape: Any, scratch: Any, scale: Any) -> Any:
    """One query as digits at the address `target`. query: (elements, index of its first); shape: (head_dim, width)."""
    store_row(query[0], query[1], scratch[0], 0, angles, shape, ONE)
    digit_row(scratch[1], target, shape[1] // LANES, scale)
