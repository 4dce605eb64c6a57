"""Q . K of one tile, and P . V in fp32: up to four rows read the cache directly, more share a copy widened to fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu.elements import is_wide, pointer, query_bytes
from paged_attn_cpu.microkernels import KEYS, STRIDE, TILE, accumulate, dots, prefetch_rows, widen_row
from paged_attn_cpu.vectors import LANES, kernel


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
        q = queries + row * width * query_bytes(kind)
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
