"""The second half: one unit of the work list against its KV heads, tile by tile with an online softmax.

Decode and prefill are the same algorithm on different shapes. A unit's rows are (query token, head of the group); its
keys come in tiles of 64 at absolute multiples of 64. A row's arithmetic is the same in every shape of unit. Here are
what units of all kinds begin with, and those in fp32; kernels_units.py goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import FIRST, SECOND, observe, pointer, query_bytes, row_offset
from paged_attn_cpu.kernels_cells import MOST_AHEAD
from paged_attn_cpu.kernels_merge import INFINITY, copy_floats, shared_counter
from paged_attn_cpu.kernels_products import add_tile, score_tile, widen_tile
from paged_attn_cpu.microkernels import KEYS, STRIDE, TILE, cap_row, prefetch_rows, softmax_row
from paged_attn_cpu.microkernels_pairs import CELL
from paged_attn_cpu.planning import QUERY_ROWS
from paged_attn_cpu.vectors import LANES, kernel

DIRECT_ROWS = 4  # widening a tile first pays from five rows on: then each element would be widened twice


LISTED = 2 * TILE // CELL  # cells of a tile and KV head


def workspace_floats(rows: int, width: int, kv_heads: int) -> int:
    """fp32 elements one worker needs: accumulators, scores, states, queries, two widened tiles, lists of addresses."""
    lists = 4 * TILE + 2 * LISTED * kv_heads + MOST_AHEAD
    return rows * (2 * width + STRIDE + 2) + 2 * TILE * width + 2 * lists


@kernel
def workspace_rows(p: Any) -> Any:
    """Rows a workspace has room for: those of a unit, or of a token's heads together."""
    return max(QUERY_ROWS, p[at.GROUP] * p[at.KV_HEADS])


@kernel
def workspace(p: Any, worker: Any, rows: Any) -> Any:
    """Addresses of a worker's parts: accumulators, scores, states, wide K and V, rows of K and V, queries, cells."""
    width = p[at.WIDTH]
    acc = p[at.WORKSPACE] + worker * p[at.WORKSPACE_FLOATS] * 4
    scores = acc + rows * width * 4
    wide_k = scores + rows * STRIDE * 4
    wide_v = wide_k + TILE * width * 4
    k_rows = wide_v + TILE * width * 4
    v_rows = k_rows + TILE * 8
    cells = v_rows + 3 * TILE * 8
    states = cells + (2 * LISTED * p[at.KV_HEADS] + MOST_AHEAD) * 8
    return acc, scores, states, wide_k, wide_v, k_rows, v_rows, states + rows * 8, cells


@kernel
def find_rows(p: Any, table: Any, head: Any, keys: Any, lists: Any, element_bytes: Any) -> Any:
    """Fill the lists of K and V row addresses for keys (start, count); both padded to whole vectors."""
    start, count = keys
    k_rows, v_rows = carray(pointer(lists[0]), (TILE,), np.int64), carray(pointer(lists[1]), (TILE,), np.int64)
    block_size = p[at.BLOCK_SIZE]
    shape = (p[at.KV_HEADS], block_size, p[at.WIDTH])
    row_bytes = p[at.WIDTH] * element_bytes
    to_v = row_offset(FIRST, SECOND, FIRST, FIRST, shape) * element_bytes
    index = start // block_size
    position = start - index * block_size
    address = np.int64(0)
    for i in range(count):
        if i == 0 or position == block_size:
            if i > 0:
                position = 0
                index += 1
            address = p[at.CACHE] + row_offset(np.int64(table[index]), FIRST, head, position, shape) * element_bytes
        k_rows[i] = address
        v_rows[i] = address + to_v
        address += row_bytes
        position += 1
    for i in range(count, -(-count // LANES) * LANES):
        k_rows[i] = k_rows[count - 1]
        v_rows[i] = v_rows[count - 1]


@kernel
def weigh_tile(p: Any, unit: Any, tile: Any, rows: Any, scores: Any, states: Any) -> Any:
    """Scores of a tile to weights, row by row, under the causal and window limits. tile: (start, count)."""
    softcap = carray(pointer(p[at.CONSTANTS]), (2,), np.float32)[at.SOFTCAP]
    group = p[at.GROUP]
    window = p[at.WINDOW] if unit[at.FIRST_MEMBER] < 0 else np.int64(0)  # what is shared no window cuts
    for row in range(rows[0], rows[1]):
        position = unit[at.POSITION] + row // group
        target = scores + row * STRIDE * 4
        if softcap > 0:
            cap_row(target, softcap, np.float32(1.0))
        high = min(position - tile[0], tile[1] - 1)
        low = position - window + 1 - tile[0] if window > 0 else np.int64(0)
        softmax_row(target, states + row * 8, min(max(low, 0), TILE), max(high, -1))


@kernel
def start_rows(p: Any, unit: Any, head: Any, acc: Any, states: Any) -> Any:
    """Rows that have seen no key (accumulators 0, maximum -inf, sum 0), or where a shared unit has left them."""
    rows, width = unit[at.COUNT] * p[at.GROUP], p[at.WIDTH]
    if unit[at.SHARED] >= 0 and unit[at.FIRST_MEMBER] < 0:
        counter = p[at.COUNTERS] + shared_counter(p, unit, head) * 8
        while observe(counter) == 0:  # its claimer came before us and waits for nobody, so this ends
            pass
        index = unit[at.PARTIAL] * p[at.KV_HEADS] + head
        copy_floats(p[at.PARTIALS] + index * rows * width * 4, acc, rows * width)
        copy_floats(p[at.PARTIAL_STATES] + index * rows * 8, states, rows * 2)
        return
    accumulators = carray(pointer(acc), (rows * width,), np.float32)
    for i in range(rows * width):
        accumulators[i] = np.float32(0.0)
    state = carray(pointer(states), (rows * 2,), np.float32)
    for row in range(rows):
        state[2 * row] = -INFINITY
        state[2 * row + 1] = np.float32(0.0)


@kernel
def find_queries(p: Any, unit: Any, head: Any, kind: Any, gathered: Any) -> Any:
    """Address of the unit's query rows; those of a shared unit's members are first copied to one place."""
    size = p[at.GROUP] * p[at.WIDTH] * query_bytes(kind)
    start = p[at.QUERIES] + head * p[at.NUM_TOKENS] * size
    if unit[at.FIRST_MEMBER] < 0:
        return start + unit[at.TOKEN] * size
    members = carray(pointer(p[at.MEMBERS]), (1 << 40, at.UNIT_FIELDS), np.int64)
    for i in range(unit[at.COUNT]):
        token = members[unit[at.FIRST_MEMBER] + i, at.TOKEN]
        copy_floats(start + token * size, gathered + i * size, size // 4)
    return gathered


@kernel
def prefetch_tile(lists: Any, count: Any, row_bytes: Any) -> Any:
    """Ask for a unit's first tile at once: K first, for it is read first. Later tiles are asked for one tile ahead."""
    for key in range(0, count, KEYS):
        prefetch_rows(lists[0] + key * 8, row_bytes)
    for key in range(0, count, KEYS):
        prefetch_rows(lists[1] + key * 8, row_bytes)


@kernel
def visible_rows(p: Any, unit: Any, start: Any) -> Any:
    """Rows of a unit, from a multiple of four on, that see keys of the tile at `start`."""
    group = p[at.GROUP]
    hidden = max(start - unit[at.POSITION], 0) * group  # rows that precede every key of the tile
    return hidden // 4 * 4, unit[at.COUNT] * group


@kernel
def attend_tile(p: Any, unit: Any, parts: Any, kind: Any, tile: Any, lists: Any) -> Any:
    """One tile into the accumulators, in fp32.

    parts: the workspace's first five and the address of the queries; tile: (start, count, count of the next, bytes of
    a cache row); lists: (K, V) row addresses of this tile and of the next.
    """
    acc, scores, states, wide_k, wide_v, queries = parts
    (k_rows, v_rows), (next_k, next_v) = lists
    start, count, following, row_bytes = tile
    width = p[at.WIDTH]
    span = visible_rows(p, unit, start)
    if span[1] > DIRECT_ROWS:
        widen_tile(kind, k_rows, count, wide_k, width)
        score_tile(INFINITY, queries, span, (k_rows, count), scores, width, (next_k, next_v, following, row_bytes))
        weigh_tile(p, unit, (start, count), span, scores, states)
        widen_tile(kind, v_rows, count, wide_v, width)  # only now: both do not fit the first-level cache
        add_tile(INFINITY, scores, span, (v_rows, v_rows), count, acc, width)
    else:
        score_tile(kind, queries, span, (k_rows, count), scores, width, (next_k, 0, following, row_bytes))
        weigh_tile(p, unit, (start, count), span, scores, states)
        add_tile(kind, scores, span, (v_rows, next_v if following == TILE else v_rows), count, acc, width)


@kernel
def visible_keys(p: Any, unit: Any) -> Any:
    """First key, rounded down to a tile, and end of what a unit has to read. Empty for a split before the window."""
    begin = unit[at.BEGIN]
    if p[at.WINDOW] > 0:
        begin = max(begin, (unit[at.POSITION] - p[at.WINDOW] + 1) // TILE * TILE)
    return begin, max(begin, unit[at.END])


@kernel
def find_tile(p: Any, unit: Any, head: Any, start: Any, lists: Any, element_bytes: Any) -> Any:
    """Row addresses of the unit's tile at `start`; returns how many keys it has."""
    table = carray(pointer(p[at.TABLES] + unit[at.ROW] * p[at.TABLE_STRIDE] * 4), (1 << 40,), np.int32)
    count = min(TILE, max(visible_keys(p, unit)[1] - start, 0))
    find_rows(p, table, head, (start, count), lists, element_bytes)
    return count


@kernel
def attend_wide(p: Any, unit: Any, head: Any, parts: Any, kind: Any, element_bytes: Any, following: Any) -> Any:
    """All keys of one unit and KV head into the accumulators and states of `parts`, in fp32."""
    acc, scores, states, wide_k, wide_v, k_rows, v_rows, gathered, _ = parts
    row_bytes = p[at.WIDTH] * element_bytes
    start_rows(p, unit, head, acc, states)
    queries = find_queries(p, unit, head, kind, gathered)
    begin, end = visible_keys(p, unit)
    this, ahead = (k_rows, v_rows), (k_rows + 2 * TILE * 8, v_rows + 2 * TILE * 8)
    count = find_tile(p, unit, head, begin, this, element_bytes)
    prefetch_tile(this, count, row_bytes)
    for start in range(begin, end, TILE):
        if start + TILE < end:
            coming = find_tile(p, unit, head, start + TILE, ahead, element_bytes)
        else:
            begin_there = visible_keys(p, following[0])[0]
            coming = find_tile(p, following[0], following[1], begin_there, ahead, element_bytes)
        tile = (start, count, coming, row_bytes)
        attend_tile(p, unit, (acc, scores, states, wide_k, wide_v, queries), kind, tile, (this, ahead))
        this, ahead, count = ahead, this, coming
