"""One unit of the work list over cells, in bf16 pairs (kernels_pairs.py) or codes (kernels_codes.py); and `attend`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import CODES, PAIRS, by_kind, is_codes, pointer
from paged_attn_cpu.kernels_attend import attend_wide, find_queries, find_rows, start_rows, visible_keys
from paged_attn_cpu.kernels_cells import MOST_AHEAD, cells_ahead, find_cells, in_cells, pack_cells
from paged_attn_cpu.kernels_codes import attend_few_codes, attend_many_codes
from paged_attn_cpu.kernels_pairs import attend_few, attend_many
from paged_attn_cpu.microkernels import TILE
from paged_attn_cpu.vectors import kernel


def _few_pairs(kind: Any, arguments: Any) -> Any:
    p, unit, work, tile, cells, heads, _ = arguments
    attend_few(p, unit, work, tile, cells, heads)


def _few_codes(kind: Any, arguments: Any) -> Any:
    p, unit, (acc, scores, states, queries), tile, cells, heads, parts = arguments
    attend_few_codes(p, kind, unit, (acc, scores, states, queries, parts[3]), tile, cells, heads)


def _many_pairs(kind: Any, arguments: Any) -> Any:
    p, unit, work, tile, cells, _ = arguments
    attend_many(p, unit, work, tile, cells)


def _many_codes(kind: Any, arguments: Any) -> Any:
    p, unit, (acc, scores, states, queries), tile, cells, parts = arguments
    attend_many_codes(p, kind, unit, (acc, scores, states, queries, parts[3]), tile, cells)


few = by_kind(lambda kind: _few_codes if kind in CODES else _few_pairs)
"""A tile into a unit of one token: (p, unit, work, tile, cells, heads, the workspace), as `attend_few`."""
many = by_kind(lambda kind: _many_codes if kind in CODES else _many_pairs)
"""A tile into all rows of a unit of one head: (p, unit, work, tile, cells, the workspace), as `attend_many`."""


@kernel
def list_cells(p: Any, kind: Any, unit: Any, heads: Any, start: Any, parts: Any, cells: Any) -> Any:
    """List the cells of a unit's tile at `start` for `heads` (first, number); returns how many addresses these are.

    Where the cache has no cells, they are packed here.
    """
    table = carray(pointer(p[at.TABLES] + unit[at.ROW] * p[at.TABLE_STRIDE] * 4), (1 << 40,), np.int32)
    count = min(TILE, max(visible_keys(p, unit)[1] - start, 0))
    if is_codes(kind) or in_cells(p):
        return 2 * heads[1] * find_cells(p, kind, table, heads, (start, count), cells)
    find_rows(p, table, heads[0], (start, count), (parts[5], parts[6]), 2)
    return 2 * pack_cells(p, (parts[5], parts[6]), count, parts[3], cells)


@kernel
def attend_cells(p: Any, unit: Any, heads: Any, parts: Any, kind: Any, following: Any) -> Any:
    """All keys of one unit into the accumulators and states of `parts`, in pairs of bf16 or in codes.

    heads: (first, number) of KV heads, more than one only if `takes_heads`; accumulators and states of the heads lie
    one behind the other.
    """
    acc, scores, states, cells = parts[0], parts[1], parts[2], parts[8]
    rows, width = unit[at.COUNT] * p[at.GROUP], p[at.WIDTH]
    for i in range(heads[1]):
        start_rows(p, unit, heads[0] + i, acc + i * rows * width * 4, states + i * rows * 8)
    work = (acc, scores, states, find_queries(p, unit, heads[0], kind, parts[7]))
    begin, end = visible_keys(p, unit)
    direct = in_cells(p)
    found = carray(pointer(cells), (1 << 40,), np.int64)
    listed = list_cells(p, kind, unit, heads, begin, parts, cells)
    for start in range(begin, end, TILE):
        tile = (start, min(TILE, end - start))
        coming, ahead = np.int64(0), cells
        if direct:
            ahead = cells + listed * 8
            if start + TILE < end:
                coming = list_cells(p, kind, unit, heads, start + TILE, parts, ahead)
            else:
                first = visible_keys(p, following[0])[0]
                coming = list_cells(p, kind, following[0], following[1], first, parts, ahead)
        if takes_heads(unit):
            here = (cells, cells_ahead(kind, width) if direct else 0)
            few(kind, (p, unit, work, tile, here, heads[1], parts))
        else:
            many(kind, (p, unit, work, tile, (cells, ahead), parts))
        if direct:
            for i in range(coming + MOST_AHEAD):
                found[i] = found[listed + i]
            listed = coming
        elif start + TILE < end:
            listed = list_cells(p, kind, unit, heads, start + TILE, parts, cells)


@kernel
def takes_heads(unit: Any) -> Any:
    """Whether a unit's KV heads may be attended to together: one token of one sequence."""
    return unit[at.COUNT] == 1 and unit[at.FIRST_MEMBER] < 0


def _attend_cells(kind: Any, arguments: Any) -> Any:
    p, unit, heads, parts, _, following = arguments
    attend_cells(p, unit, heads, parts, kind, following)


def _attend_wide(kind: Any, arguments: Any) -> Any:
    p, unit, heads, parts, element_bytes, following = arguments
    attend_wide(p, unit, heads[0], parts, kind, element_bytes, (following[0], following[1][0]))


attend = by_kind(lambda kind: _attend_cells if kind == PAIRS or kind in CODES else _attend_wide)
"""All keys of one unit into the accumulators and states of the workspace: (p, unit, heads, workspace, element_bytes,
following).

heads: (first, number) of KV heads; following: (unit, heads) this worker does next, whose first tile is asked for while
the last one here is computed.
"""
