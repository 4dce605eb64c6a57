"""Cells: K and V of 16 keys of one head, in lines that the pair instruction multiplies as they are.

    cell of K   [width / 2] lines, one a pair of columns:            key 0 (c, c + 1)  key 1 (c, c + 1)  ...  key 15
    cell of V   [width / 16] chunks of 8 lines, one a pair of keys:  column 0 (k, k + 1)  column 1  ...  column 15

Where block sizes are multiples of 16, the cache itself consists of cells: a head's keys in a block are block_size / 16
cells of K, one behind the other, its values so many of V. Other block sizes keep plain rows, and a tile of those is
packed into cells when it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import FIRST, SECOND, is_codes, pointer
from paged_attn_cpu.microkernels import TILE
from paged_attn_cpu.microkernels_pairs import CELL
from paged_attn_cpu.microkernels_rows import list_run, spread_key, spread_value
from paged_attn_cpu.vectors import LANES, kernel

AHEAD_BYTES = 8192  # how far ahead of their use keys and values are asked for; see README, "What limits decode"
MOST_AHEAD = 8  # cells
SCALING_BYTES = 4 * CELL * 4  # behind a cell of K in codes: four fp32 a key, see kernels_codes.py


@kernel
def cell_sizes(kind: Any, width: Any) -> Any:
    """Bytes of a cell of K and of V."""
    if is_codes(kind):
        return CELL * width + SCALING_BYTES, CELL * width
    return 2 * CELL * width, 2 * CELL * width


@kernel
def cells_ahead(kind: Any, width: Any) -> Any:
    """How many cells lie between what is computed and what is asked for from memory."""
    return max(1, min(MOST_AHEAD, AHEAD_BYTES // cell_sizes(kind, width)[1]))


@kernel
def cell_offset(block: Any, part: Any, head: Any, cell: Any, shape: Any, sizes: Any) -> Any:
    """Bytes from the cache's beginning to a cell of a block: there lie all heads' K, then V. part: 0 = K, 1 = V.

    shape: (kv_heads, cells of a head in a block); sizes: `cell_sizes`.
    """
    kv_heads, num_cells = shape
    start = np.int64(block) * kv_heads * num_cells * (sizes[0] + sizes[1])
    if part == 1:
        start += kv_heads * num_cells * sizes[0]
    return start + (head * num_cells + cell) * sizes[part]


@kernel
def in_cells(p: Any) -> Any:
    """Whether the cache consists of cells."""
    return p[at.BLOCK_SIZE] % CELL == 0


@kernel
def key_in_cells(position: Any, width: Any) -> Any:
    """Element of a head's K in a block where column 0 of the key at `position` lies; pairs lie 2 * CELL apart."""
    return position // CELL * CELL * width + position % CELL * 2


@kernel
def value_in_cells(position: Any, width: Any) -> Any:
    """Element of a head's V in a block where column 0 of the key at `position` lies.

    Columns lie 2 apart, and chunks of LANES columns CELL * LANES.
    """
    return position // CELL * CELL * width + position % CELL // 2 * 2 * LANES + position % 2


@kernel
def find_cells(p: Any, kind: Any, table: Any, heads: Any, keys: Any, cells: Any) -> Any:
    """List the addresses of a tile's cells in the order of their use: K of every cell and head, then V.

    Pairs are used in the order of their addresses: cell by cell all heads. Codes are used head by head: then sums are
    begun and settled once a tile.

    heads: (first, number); keys: (start, count); cells: address of the list. It is padded with what may be asked for:
    its last address, or the cache's when the tile is empty. Returns the number of cells.
    """
    first, num_heads = heads
    start, count = keys
    num_cells = -(-count // CELL)
    half, by_head = num_cells * num_heads, is_codes(kind)
    block_size, sizes = p[at.BLOCK_SIZE], cell_sizes(kind, p[at.WIDTH])
    shape = (p[at.KV_HEADS], block_size // CELL)
    last = p[at.CACHE]
    index = start // block_size
    place = (start - index * block_size) // CELL
    for cell in range(num_cells):
        block = np.int64(table[index])
        k = p[at.CACHE] + cell_offset(block, FIRST, first, place, shape, sizes)
        last = p[at.CACHE] + cell_offset(block, SECOND, first, place, shape, sizes)
        entry = cells + cell * (1 if by_head else num_heads) * 8
        list_run(entry, k, shape[1] * sizes[0], num_heads, num_cells if by_head else 1)
        list_run(entry + half * 8, last, shape[1] * sizes[1], num_heads, num_cells if by_head else 1)
        place += 1
        if place == shape[1]:
            index, place = index + 1, 0
    list_run(cells + 2 * half * 8, last, 0, MOST_AHEAD, 1)
    return num_cells


@kernel
def pack_cells(p: Any, lists: Any, count: Any, packed: Any, cells: Any) -> Any:
    """Pack rows of K and V into cells at `packed`, and list these. lists: addresses of the row addresses.

    What no key fills is left as it was. Returns the number of cells.
    """
    width = p[at.WIDTH]
    num_cells = -(-count // CELL)
    size = CELL * width
    k_rows, v_rows = carray(pointer(lists[0]), (TILE,), np.int64), carray(pointer(lists[1]), (TILE,), np.int64)
    list_run(cells, packed, size * 2, 2 * num_cells, 1)
    list_run(cells + 2 * num_cells * 8, packed, 0, MOST_AHEAD, 1)
    for i in range(count):
        store_key(k_rows[i], packed, i, width)
        store_value(v_rows[i], packed + num_cells * size * 2, i, width)
    return num_cells


@kernel
def store_key(row: Any, head: Any, position: Any, width: Any) -> Any:
    """Spread a row of K, at an address, over its cell among those of a head, at another."""
    spread_key((row, head + key_in_cells(position, width) * 2), width)


@kernel
def store_value(row: Any, head: Any, position: Any, width: Any) -> Any:
    """Spread a row of V, at an address, over its cell among those of a head, at another."""
    start = head + value_in_cells(position, width) * 2
    for chunk in range(width // LANES):
        spread_value((row + chunk * LANES * 2, start + chunk * CELL * LANES * 2))
