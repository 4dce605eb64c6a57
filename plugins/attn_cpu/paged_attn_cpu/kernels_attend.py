"""The second half: one unit of the work list against one KV head, tile by tile with an online softmax.

Decode and prefill are the same algorithm on different shapes. A unit's rows are (query token, head of the group); its
keys come in tiles of 64 at absolute multiples of 64. Up to four rows (a decoding sequence) read the cache directly;
more rows (prefill) share a copy of the tile widened to fp32. A row's arithmetic is the same in either shape.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import narrowed, pointer, row_offset
from paged_attn_cpu.microkernels import (
    KEYS,
    STRIDE,
    TILE,
    accumulate,
    cap_row,
    dots,
    exp_row,
    prefetch_rows,
    softmax_row,
    widen_row,
)
from paged_attn_cpu.vectors import LANES, kernel

DIRECT_ROWS = 4  # widening a tile first pays from five rows on: then each element would be widened twice
INFINITY = np.float32(np.inf)


def workspace_floats(rows: int, width: int) -> int:
    """fp32 elements one worker needs: accumulators, scores, states, two widened tiles, four lists of addresses."""
    return rows * (width + STRIDE + 2) + 2 * TILE * width + 8 * TILE


@kernel
def workspace(p: Any, worker: Any, rows: Any) -> Any:
    """Addresses of a worker's parts: accumulators, scores, states, wide K, wide V, K addresses, V addresses."""
    width = p[at.WIDTH]
    acc = p[at.WORKSPACE] + worker * p[at.WORKSPACE_FLOATS] * 4
    scores = acc + rows * width * 4
    wide_k = scores + rows * STRIDE * 4
    wide_v = wide_k + TILE * width * 4
    k_rows = wide_v + TILE * width * 4
    v_rows = k_rows + TILE * 8
    return acc, scores, v_rows + 3 * TILE * 8, wide_k, wide_v, k_rows, v_rows


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
    """Copy the rows of a list to fp32 rows at `target` and point the list there."""
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
    group, window = p[at.GROUP], p[at.WINDOW]
    for row in range(rows[0], rows[1]):
        position = unit[at.POSITION] + row // group
        target = scores + row * STRIDE * 4
        if softcap > 0:
            cap_row(target, softcap)
        high = min(position - tile[0], tile[1] - 1)
        low = position - window + 1 - tile[0] if window > 0 else np.int64(0)
        softmax_row(target, states + row * 8, min(max(low, 0), TILE), max(high, -1))


@kernel
def reset_rows(acc: Any, states: Any, rows: Any, width: Any) -> Any:
    """Rows that have seen no key: accumulators 0, maximum -inf, sum 0."""
    accumulators = carray(pointer(acc), (rows * width,), np.float32)
    for i in range(rows * width):
        accumulators[i] = np.float32(0.0)
    state = carray(pointer(states), (rows * 2,), np.float32)
    for row in range(rows):
        state[2 * row] = -INFINITY
        state[2 * row + 1] = np.float32(0.0)


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

    parts: the workspace's first five and the KV head; tile: (start, count, count of the next, bytes of a cache row);
    lists: (K, V) row addresses of this tile and of the next.
    """
    acc, scores, states, wide_k, wide_v = parts[:5]
    (k_rows, v_rows), (next_k, next_v) = lists
    start, count, following, row_bytes = tile
    width, group = p[at.WIDTH], p[at.GROUP]
    rows = unit[at.COUNT] * group
    softcap = carray(pointer(p[at.CONSTANTS]), (2,), np.float32)[at.SOFTCAP]
    queries = p[at.QUERIES] + (parts[5] * p[at.NUM_TOKENS] + unit[at.TOKEN]) * group * width * 4
    hidden = max(start - unit[at.POSITION], 0) * group  # rows that precede every key of the tile
    span = (hidden // 4 * 4, rows)
    if rows > DIRECT_ROWS:
        widen_tile(kind, k_rows, count, wide_k, width)
        widen_tile(kind, v_rows, count, wide_v, width)
        score_tile(INFINITY, queries, span, (k_rows, count), scores, width, (next_k, next_v, following, row_bytes))
        weigh_tile(p, unit, (start, count), span, scores, states, softcap)
        add_tile(INFINITY, scores, span, (v_rows, v_rows), count, acc, width)
    else:
        score_tile(kind, queries, span, (k_rows, count), scores, width, (next_k, 0, following, row_bytes))
        weigh_tile(p, unit, (start, count), span, scores, states, softcap)
        add_tile(kind, scores, span, (v_rows, next_v if following == TILE else v_rows), count, acc, width)


@kernel
def attend(p: Any, unit: Any, head: Any, parts: Any, kind: Any, element_bytes: Any) -> Any:
    """All keys of one unit into the accumulators and states of `parts` (see `workspace`)."""
    acc, scores, states, wide_k, wide_v, k_rows, v_rows = parts
    row_bytes = p[at.WIDTH] * element_bytes
    reset_rows(acc, states, unit[at.COUNT] * p[at.GROUP], p[at.WIDTH])
    table = carray(pointer(p[at.TABLES] + unit[at.ROW] * p[at.TABLE_STRIDE] * 4), (1 << 40,), np.int32)
    begin, end = unit[at.BEGIN], unit[at.END]
    if p[at.WINDOW] > 0:
        begin = max(begin, (unit[at.POSITION] - p[at.WINDOW] + 1) // TILE * TILE)
    if begin >= end:  # a split that lies before the window
        return
    this, ahead = (k_rows, v_rows), (k_rows + 2 * TILE * 8, v_rows + 2 * TILE * 8)
    find_rows(p, table, head, (begin, min(TILE, end - begin)), this, element_bytes)
    prefetch_tile(this, min(TILE, end - begin), row_bytes)
    for start in range(begin, end, TILE):
        count, following = min(TILE, end - start), min(TILE, max(end - start - TILE, 0))
        find_rows(p, table, head, (start + TILE, following), ahead, element_bytes)
        tile = (start, count, following, row_bytes)
        attend_tile(p, unit, (acc, scores, states, wide_k, wide_v, head), kind, tile, (this, ahead))
        this, ahead = ahead, this


@kernel
def write_rows(p: Any, unit: Any, head: Any, acc: Any, states: Any, out: Any) -> Any:
    """Divide by the softmax sums and store the unit's rows (and their log-sum-exp) in the output's dtype."""
    width, group, head_dim = p[at.WIDTH], p[at.GROUP], p[at.HEAD_DIM]
    values = carray(pointer(acc), (1 << 40,), np.float32)
    state = carray(pointer(states), (1 << 40,), np.float32)
    lse = carray(pointer(p[at.LSE]), (1 << 40,), np.float32)
    for row in range(unit[at.COUNT] * group):
        token = unit[at.TOKEN] + row // group
        query_head = head * group + row % group
        total = state[2 * row + 1]
        factor = np.float32(0.0) if total == 0 else np.float32(1.0) / total
        target = token * p[at.OUT_STRIDE] + query_head * head_dim
        for i in range(head_dim):
            out[target + i] = narrowed(values[row * width + i] * factor, out[0])
        if p[at.LSE] != 0:
            lse[token * p[at.KV_HEADS] * group + query_head] = state[2 * row] + np.float32(math.log(total))


@kernel
def keep_partial(p: Any, unit: Any, head: Any, acc: Any, states: Any) -> Any:
    """Save a split's accumulators and states for the merge."""
    size = p[at.GROUP] * p[at.WIDTH]
    index = unit[at.PARTIAL] * p[at.KV_HEADS] + head
    source = carray(pointer(acc), (size,), np.float32)
    target = carray(pointer(p[at.PARTIALS] + index * size * 4), (size,), np.float32)
    for i in range(size):
        target[i] = source[i]
    state = carray(pointer(states), (2 * p[at.GROUP],), np.float32)
    kept = carray(pointer(p[at.PARTIAL_STATES] + index * 2 * p[at.GROUP] * 4), (2 * p[at.GROUP],), np.float32)
    for i in range(2 * p[at.GROUP]):
        kept[i] = state[i]


@kernel
def merge_partials(p: Any, unit: Any, head: Any, parts: Any) -> Any:
    """Combine all splits of a sequence in order of position, into the accumulators and states of `parts`."""
    acc, scores, states = parts[0], parts[1], parts[2]
    width, group, kv_heads = p[at.WIDTH], p[at.GROUP], p[at.KV_HEADS]
    total = carray(pointer(acc), (group * width,), np.float32)
    state = carray(pointer(states), (2 * group,), np.float32)
    partials = carray(pointer(p[at.PARTIALS]), (1 << 40,), np.float32)
    kept = carray(pointer(p[at.PARTIAL_STATES]), (1 << 40,), np.float32)
    factor = carray(pointer(scores), (LANES,), np.float32)
    for i in range(group * width):
        total[i] = np.float32(0.0)
    for g in range(group):
        highest = -INFINITY
        for part in range(unit[at.PARTS]):
            index = (unit[at.FIRST_PARTIAL] + part) * kv_heads + head
            highest = max(highest, kept[(index * group + g) * 2])
        origin = np.float32(0.0) if highest == -INFINITY else highest
        summed = np.float32(0.0)
        for part in range(unit[at.PARTS]):
            row = ((unit[at.FIRST_PARTIAL] + part) * kv_heads + head) * group + g
            factor[0] = kept[row * 2] - origin
            exp_row(scores, scores, 1)
            weight = factor[0]
            summed += kept[row * 2 + 1] * weight
            for i in range(width):
                total[g * width + i] += partials[row * width + i] * weight
        state[2 * g] = highest
        state[2 * g + 1] = summed
