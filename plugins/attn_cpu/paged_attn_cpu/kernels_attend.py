"""The second half: one unit of the work list against one KV head, tile by tile with an online softmax.

Decode and prefill are the same algorithm on different shapes. A unit's rows are (query token, head of the group); its
keys come in tiles of 64 at absolute multiples of 64. Up to four rows (a decoding sequence) read the cache directly;
more rows (prefill) share a copy of the tile widened to fp32. A row's arithmetic is the same in either shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import is_wide, observe, pointer, row_offset
from paged_attn_cpu.kernels_merge import INFINITY, copy_floats, shared_counter
from paged_attn_cpu.microkernels import (
    KEYS,
    STRIDE,
    TILE,
    accumulate,
    cap_row,
    dots,
    prefetch_rows,
    softmax_row,
    widen_row,
)
from paged_attn_cpu.vectors import LANES, kernel

DIRECT_ROWS = 4  # widening a tile first pays from five rows on: then each element would be widened twice


def workspace_floats(rows: int, width: int) -> int:
    """fp32 elements one worker needs: accumulators, scores, states, two widened tiles, four lists of addresses."""
    return rows * (2 * width + STRIDE + 2) + 2 * TILE * width + 8 * TILE


@kernel
def workspace(p: Any, worker: Any, rows: Any) -> Any:
    """Addresses of a worker's parts: accumulators, scores, states, wide K and V, K and V addresses, queries."""
    width = p[at.WIDTH]
    acc = p[at.WORKSPACE] + worker * p[at.WORKSPACE_FLOATS] * 4
    scores = acc + rows * width * 4
    wide_k = scores + rows * STRIDE * 4
    wide_v = wide_k + TILE * width * 4
    k_rows = wide_v + TILE * width * 4
    v_rows = k_rows + TILE * 8
    states = v_rows + 3 * TILE * 8
    return acc, scores, states, wide_k, wide_v, k_rows, v_rows, states + rows * 8


@kernel
def find_rows(p: Any, table: Any, head: Any, keys: Any, lists: Any, element_bytes: Any) -> Any:
    """Fill the lists of K and V row addresses for keys (start, count); the K list is padded to whole quads."""
    start, count = keys
    k_rows, v_rows = carray(pointer(lists[0]), (TILE,), np.int64), carray(pointer(lists[1]), (TILE,), np.int64)
    block_size = p[at.BLOCK_SIZE]
    shape = (p[at.KV_HEADS], block_size, p[at.WIDTH])
    row_bytes = p[at.WIDTH] * element_bytes
    to_v = row_offset(0, 1, 0, 0, shape) * element_bytes
    index = start // block_size
    position = start - index * block_size
    address = np.int64(0)
    for i in range(count):
        if i == 0 or position == block_size:
            if i > 0:
                position = 0
                index += 1
            address = p[at.CACHE] + row_offset(table[index], 0, head, position, shape) * element_bytes
        k_rows[i] = address
        v_rows[i] = address + to_v
        address += row_bytes
        position += 1
    for i in range(count, -(-count // KEYS) * KEYS):
        k_rows[i] = k_rows[count - 1]
        v_rows[i] = v_rows[count - 1]


@kernel
def widen_tile(kind: Any, addresses: Any, count: Any, target: Any, width: Any) -> Any:
    """Copy the rows of a list to fp32 rows at `target` and point the list there; rows in fp32 stay where they are."""
    if is_wide(kind):
        return
    rows = carray(pointer(addresses), (TILE,), np.int64)
    for i in range(count):
        widen_row(kind, rows[i], target + i * width * 4, width // LANES)
        rows[i] = target + i * width * 4
    for i in range(count, -(-count // KEYS) * KEYS):
        rows[i] = rows[count - 1]


@kernel
def score_tile(kind: Any, queries: Any, rows: Any, keys: Any, scores: Any, width: Any, ahead: Any) -> Any:
    """scores[first..last row, keys] = queries . keys; rows: (first, last + 1), first a multiple of four.

    keys: (K addresses, count); ahead: (K addresses, V addresses or 0, count, row bytes) of rows to prefetch
    meanwhile. Blocks are short runs at random places: the processor's own prefetcher learns each one only to lose it.
    """
    k_rows, count = keys
    chunks = width // LANES
    for row in range(rows[0], rows[1], 4):
        q = queries + row * width * 4
        target = scores + row * STRIDE * 4
        left = rows[1] - row
        for key in range(0, count, KEYS):
            if row == rows[0] and key < ahead[2]:
                prefetch_rows(ahead[0] + key * 8, ahead[3])
                if ahead[1] != 0:
                    prefetch_rows(ahead[1] + key * 8, ahead[3])
            if left >= 4:
                dots(4, kind, q, k_rows + key * 8, chunks, target + key * 4)
            elif left == 3:
                dots(3, kind, q, k_rows + key * 8, chunks, target + key * 4)
            elif left == 2:
                dots(2, kind, q, k_rows + key * 8, chunks, target + key * 4)
            else:
                dots(1, kind, q, k_rows + key * 8, chunks, target + key * 4)


@kernel
def add_patch(kind: Any, left: Any, weights: Any, here: Any, count: Any, column: Any, acc: Any, width: Any) -> Any:
    """Weighted values of up to four rows into LANES columns."""
    if left >= 4:
        accumulate(33, kind, weights, here, count, column, acc, width)
    elif left == 3:
        accumulate(25, kind, weights, here, count, column, acc, width)
    elif left == 2:
        accumulate(17, kind, weights, here, count, column, acc, width)
    else:
        accumulate(9, kind, weights, here, count, column, acc, width)


@kernel
def add_tile(kind: Any, weights: Any, rows: Any, lists: Any, count: Any, acc: Any, width: Any) -> Any:
    """acc[rows] = acc * correction + weights . values, in patches of four rows by four vectors.

    lists: (V addresses, addresses of rows to prefetch meanwhile).
    """
    for row in range(rows[0], rows[1], 4):
        w = weights + row * STRIDE * 4
        target = acc + row * width * 4
        left = rows[1] - row
        here = lists if row == rows[0] else (lists[0], lists[0])  # a second pass would only repeat the prefetches
        column = 0
        while column + 4 * LANES <= width:
            if left >= 4:
                accumulate(36, kind, w, here, count, column, target, width)
            elif left == 3:
                accumulate(28, kind, w, here, count, column, target, width)
            elif left == 2:
                accumulate(20, kind, w, here, count, column, target, width)
            else:
                accumulate(12, kind, w, here, count, column, target, width)
            column += 4 * LANES
        while column < width:
            add_patch(kind, left, w, here, count, column, target, width)
            column += LANES


@kernel
def weigh_tile(p: Any, unit: Any, tile: Any, rows: Any, scores: Any, states: Any, softcap: Any) -> Any:
    """Scores of a tile to weights, row by row, under the causal and window limits. tile: (start, count)."""
    group = p[at.GROUP]
    window = p[at.WINDOW] if unit[at.FIRST_MEMBER] < 0 else np.int64(0)  # what is shared no window cuts
    for row in range(rows[0], rows[1]):
        position = unit[at.POSITION] + row // group
        target = scores + row * STRIDE * 4
        if softcap > 0:
            cap_row(target, softcap)
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
def find_queries(p: Any, unit: Any, head: Any, gathered: Any) -> Any:
    """Address of the unit's query rows; those of a shared unit's members are first copied to one place."""
    size = p[at.GROUP] * p[at.WIDTH]
    start = p[at.QUERIES] + head * p[at.NUM_TOKENS] * size * 4
    if unit[at.FIRST_MEMBER] < 0:
        return start + unit[at.TOKEN] * size * 4
    members = carray(pointer(p[at.MEMBERS]), (1 << 40, at.UNIT_FIELDS), np.int64)
    for i in range(unit[at.COUNT]):
        token = members[unit[at.FIRST_MEMBER] + i, at.TOKEN]
        copy_floats(start + token * size * 4, gathered + i * size * 4, size)
    return gathered


@kernel
def prefetch_tile(lists: Any, count: Any, row_bytes: Any) -> Any:
    """Ask for a unit's first tile at once: K first, for it is read first. Later tiles are asked for one tile ahead."""
    for key in range(0, count, KEYS):
        prefetch_rows(lists[0] + key * 8, row_bytes)
    for key in range(0, count, KEYS):
        prefetch_rows(lists[1] + key * 8, row_bytes)


@kernel
def attend_tile(p: Any, unit: Any, parts: Any, kind: Any, tile: Any, lists: Any) -> Any:
    """One tile into the accumulators.

    parts: the workspace's first five and the address of the queries; tile: (start, count, count of the next, bytes of
    a cache row); lists: (K, V) row addresses of this tile and of the next.
    """
    acc, scores, states, wide_k, wide_v, queries = parts
    (k_rows, v_rows), (next_k, next_v) = lists
    start, count, following, row_bytes = tile
    width, group = p[at.WIDTH], p[at.GROUP]
    rows = unit[at.COUNT] * group
    softcap = carray(pointer(p[at.CONSTANTS]), (2,), np.float32)[at.SOFTCAP]
    hidden = max(start - unit[at.POSITION], 0) * group  # rows that precede every key of the tile
    span = (hidden // 4 * 4, rows)
    if rows > DIRECT_ROWS:
        widen_tile(kind, k_rows, count, wide_k, width)
        score_tile(INFINITY, queries, span, (k_rows, count), scores, width, (next_k, next_v, following, row_bytes))
        weigh_tile(p, unit, (start, count), span, scores, states, softcap)
        widen_tile(kind, v_rows, count, wide_v, width)  # only now: both do not fit the first-level cache
        add_tile(INFINITY, scores, span, (v_rows, v_rows), count, acc, width)
    else:
        score_tile(kind, queries, span, (k_rows, count), scores, width, (next_k, 0, following, row_bytes))
        weigh_tile(p, unit, (start, count), span, scores, states, softcap)
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
def attend(p: Any, unit: Any, head: Any, parts: Any, kind: Any, element_bytes: Any, following: Any) -> Any:
    """All keys of one unit into the accumulators and states of `parts` (see `workspace`).

    following: (unit, head) this worker does next, whose first tile is asked for while the last one here is computed.
    """
    acc, scores, states, wide_k, wide_v, k_rows, v_rows, gathered = parts
    row_bytes = p[at.WIDTH] * element_bytes
    start_rows(p, unit, head, acc, states)
    queries = find_queries(p, unit, head, gathered)
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
