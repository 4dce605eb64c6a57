"""Rows of K and V as codes in their cells, queries as digits; where each byte lies is told in kernels_codes.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu.coding import digit_row, encode_row
from paged_attn_cpu.elements import FIRST, SECOND, bytes_of, pointer
from paged_attn_cpu.kernels_cells import SCALING_BYTES, cell_offset
from paged_attn_cpu.kernels_write import ONE, put_row
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
def encode(read: Any, source: Any, angles: Any, shape: Any, scratch: Any) -> Any:
    """Step and minimum of a row at the address `source`, rotated; its codes go behind the row in scratch.

    read: an element of its type; shape: (head_dim, width).
    """
    head_dim, width = shape
    row, address = scratch
    put_row((read, row[0]), (source, address), angles, head_dim, head_dim, ONE)
    for i in range(head_dim, width):  # columns that nobody reads must not widen the range
        row[i] = row[0]
    return encode_row(address, address + width * 4, width // LANES)


@kernel
def write_codes(read: Any, slot: Any, inputs: Any, cache: Any, angles: Any, sizes: Any, scratch: Any) -> Any:
    """Code one token's K and V; a negative slot is padding and is skipped.

    read: an element of their type; inputs: addresses of the token's K and V; cache: its address; angles: as in
    `put_row`; sizes: (kv_heads, head_dim, width, block_size); scratch: (fp32 for a row and its codes, their address).
    """
    if slot < 0:
        return
    k, v = inputs
    kv_heads, head_dim, width, block_size = sizes
    unturned = (angles[0], angles[1], FIRST)
    block, position = slot // block_size, slot % block_size
    cell, lane, shape = position // CELL, position % CELL, (kv_heads, block_size // CELL)
    cells, codes = (CELL * width + SCALING_BYTES, CELL * width), scratch[1] + width * 4
    row_bytes = head_dim * bytes_of(read)
    for head in range(kv_heads):
        keys = cache + cell_offset(block, FIRST, head, cell, shape, cells)
        scaling = carray(pointer(keys + CELL * width), (4 * CELL,), np.float32)
        step, least = encode(read, k + head * row_bytes, angles, (head_dim, width), scratch)
        store_key(codes, keys, lane, width)
        scaling[lane], scaling[CELL + lane] = step, least
        step, least = encode(read, v + head * row_bytes, unturned, (head_dim, width), scratch)
        store_value(codes, cache + cell_offset(block, SECOND, head, cell, shape, cells), lane, width)
        scaling[2 * CELL + lane], scaling[3 * CELL + lane] = step, least + MIDDLE_CODE * step


@kernel
def write_digits(read: Any, here: Any, angles: Any, shape: Any, scratch: Any) -> Any:
    """One query as digits. read: an element of its type; here: addresses of both; shape: (head_dim, width)."""
    target = here[1]
    put_row((read, scratch[0][0]), (here[0], scratch[1]), angles, shape[0], shape[1], ONE)
    digit_row(scratch[1], target, shape[1] // LANES)
