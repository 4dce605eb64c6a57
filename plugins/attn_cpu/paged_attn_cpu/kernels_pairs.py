"""One tile of a unit in pairs of bf16: scores, softmax, weighted values, patch by patch of up to six rows.

A decoding sequence has as many rows a head as the group, and takes several heads at a time, for they lie side by side
in memory: its cells are used in the order of their addresses, each as soon as it has come (`attend_few`). Units of more
tokens and units that sequences share take one head, whose tile stays in the first-level cache while all rows use
it (`attend_many`). Rows compute the same in both, and see no key behind their own position: what a causal row does not
see is not multiplied, in steps of a cell for scores and of a key for values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import pointer
from paged_attn_cpu.microkernels import STRIDE, TILE, cap_row, scale_row
from paged_attn_cpu.microkernels_pairs import (
    CELL,
    MOST_ROWS,
    UNCORRECTED,
    add_cells,
    hide_keys,
    score_cells,
    weigh_patch,
)
from paged_attn_cpu.vectors import LANES, kernel

ROWS_TOGETHER = 24  # of four patches: their softmaxes overlap. 6 took 5 to 10 % longer, 12 and 60 were no better
WHOLE = np.int64(TILE)  # not a literal: kernels are compiled anew for those


@kernel
def patch_rows(left: Any) -> Any:
    """Rows of the next patch when `left` are left: kernels exist for 6, 4, 3, 2 and 1."""
    return MOST_ROWS if left >= MOST_ROWS else min(left, 4) if left != 5 else 3


@kernel
def large_patch(left: Any) -> Any:
    """As `patch_rows`, for work that is seldom left with few rows: 6, 3 and 1."""
    return MOST_ROWS if left >= MOST_ROWS else 3 if left >= 3 else 1


@kernel
def score_cell(rows: Any, queries: Any, lists: Any, width: Any, scores: Any) -> Any:
    """`score_cells` of one cell."""
    if rows == MOST_ROWS:
        score_cells(49, queries, lists, width, scores)
    elif rows == 4:
        score_cells(33, queries, lists, width, scores)
    elif rows == 3:
        score_cells(25, queries, lists, width, scores)
    elif rows == 2:
        score_cells(17, queries, lists, width, scores)
    else:
        score_cells(9, queries, lists, width, scores)


@kernel
def score_four(rows: Any, queries: Any, lists: Any, width: Any, scores: Any) -> Any:
    """`score_cells` of four cells."""
    if rows == MOST_ROWS:
        score_cells(52, queries, lists, width, scores)
    elif rows == 3:
        score_cells(28, queries, lists, width, scores)
    else:
        score_cells(12, queries, lists, width, scores)


@kernel
def add_wide(rows: Any, weights: Any, lists: Any, keys: Any, column: Any, acc: Any, width: Any, fix: Any) -> Any:
    """`add_cells` into four vectors of columns."""
    if rows == MOST_ROWS:
        add_cells(52, weights, lists, keys, column, acc, width, fix)
    elif rows == 4:
        add_cells(36, weights, lists, keys, column, acc, width, fix)
    elif rows == 3:
        add_cells(28, weights, lists, keys, column, acc, width, fix)
    elif rows == 2:
        add_cells(20, weights, lists, keys, column, acc, width, fix)
    else:
        add_cells(12, weights, lists, keys, column, acc, width, fix)


@kernel
def add_narrow(rows: Any, weights: Any, lists: Any, keys: Any, column: Any, acc: Any, width: Any, fix: Any) -> Any:
    """`add_cells` into one vector of columns."""
    if rows == MOST_ROWS:
        add_cells(49, weights, lists, keys, column, acc, width, fix)
    elif rows == 4:
        add_cells(33, weights, lists, keys, column, acc, width, fix)
    elif rows == 3:
        add_cells(25, weights, lists, keys, column, acc, width, fix)
    elif rows == 2:
        add_cells(17, weights, lists, keys, column, acc, width, fix)
    else:
        add_cells(9, weights, lists, keys, column, acc, width, fix)


@kernel
def add_patch(rows: Any, weights: Any, lists: Any, keys: Any, acc: Any, width: Any, correction: Any) -> Any:
    """acc = acc * correction + weights . values of a patch of rows, all columns."""
    column = np.int64(0)
    while column + 4 * LANES <= width:
        add_wide(rows, weights, lists, keys, column, acc, width, correction)
        column += 4 * LANES
    while column < width:
        add_narrow(rows, weights, lists, keys, column, acc, width, correction)
        column += LANES


@kernel
def prepare_scores(p: Any, unit: Any, tile: Any, rows: Any, scores: Any) -> Any:
    """Soft-cap scores of a tile and hide keys from rows that do not see them; returns what is yet to multiply them.

    rows: (first of the unit, number of rows, which of them are of one token), at `scores`.
    """
    constants = carray(pointer(p[at.CONSTANTS]), (2,), np.float32)
    softcap, scale = constants[at.SOFTCAP], constants[at.SCALE]
    window = p[at.WINDOW] if unit[at.FIRST_MEMBER] < 0 else np.int64(0)  # what is shared no window cuts
    first, number, together = rows
    position = unit[at.POSITION] + first // together
    if softcap > 0 or scale <= 0:
        for row in range(number):
            if softcap > 0:
                cap_row(scores + row * STRIDE * 4, softcap, scale)
            else:
                scale_row(scores + row * STRIDE * 4, scale)
        scale = np.float32(1.0)
    last = unit[at.POSITION] + (first + number - 1) // together
    if position - tile[0] < TILE - 1 or tile[1] < TILE or (window > 0 and last - window + 1 > tile[0]):
        for row in range(number):
            position = unit[at.POSITION] + (first + row) // together
            high = min(position - tile[0], tile[1] - 1)
            low = min(max(position - window + 1 - tile[0], 0), TILE) if window > 0 else np.int64(0)
            hide_keys(scores + row * STRIDE * 4, low, high)
    return scale


@kernel
def weigh_rows(number: Any, scores: Any, states: Any, scale: Any) -> Any:
    """Scores to weights for any number of rows."""
    row = 0
    while row < number:
        size = large_patch(number - row)
        target, state = scores + row * STRIDE * 4, states + row * 8
        if size == MOST_ROWS:
            weigh_patch(6, target, state, scale)
        elif size == 3:
            weigh_patch(3, target, state, scale)
        else:
            weigh_patch(1, target, state, scale)
        row += size


@kernel
def attend_few(p: Any, unit: Any, parts: Any, tile: Any, cells: Any, heads: Any) -> Any:
    """A tile into a unit of one token and `heads` heads. parts: (acc, scores, states, queries); tile: (start, count);
    cells: (address of the list, how many cells ahead are asked for)."""
    acc, scores, states, queries = parts
    group, width = p[at.GROUP], p[at.WIDTH]
    rows = heads * group
    for row in range(rows):
        carray(pointer(scores + row * STRIDE * 4), (STRIDE,), np.float32)[UNCORRECTED] = np.float32(1.0)
    count, num_cells = tile[1], -(-tile[1] // CELL)
    next_head = p[at.NUM_TOKENS] * group * width * 2
    entry, ahead = cells[0], cells[1] * 8
    for cell in range(num_cells):
        for head in range(heads):
            row = 0
            while row < group:
                size = patch_rows(group - row)
                q = queries + head * next_head + row * width * 2
                target = scores + ((head * group + row) * STRIDE + cell * CELL) * 4
                score_cell(size, q, (entry, entry + ahead), width, target)
                row += size
            entry += 8
    scale = prepare_scores(p, unit, tile, (np.int64(0), rows, rows), scores)
    weigh_rows(rows, scores, states, scale)
    for cell in range(num_cells):
        for head in range(heads):
            row = 0
            while row < group:
                size, place = patch_rows(group - row), head * group + row
                weights = scores + place * STRIDE * 4 + cell * CELL * 2
                correction = (TILE if cell == 0 else UNCORRECTED) - cell * (CELL // 2)
                keys = min(CELL, count - cell * CELL)
                add_patch(size, weights, (entry, entry + ahead), keys, acc + place * width * 4, width, correction)
                row += size
            entry += 8


@kernel
def attend_many(p: Any, unit: Any, parts: Any, tile: Any, cells: Any) -> Any:
    """A tile into all rows of a unit of one head. parts: (acc, scores, states, queries); tile: (start, count); cells:
    addresses of the list and of the next tile's, which the first patch asks for."""
    acc, scores, states, queries = parts
    width = p[at.WIDTH]
    rows = unit[at.COUNT] * p[at.GROUP]
    here, ahead = cells
    first = max(tile[0] - unit[at.POSITION], 0) * p[at.GROUP]  # those before precede every key of the tile
    while first < rows:
        number = min(ROWS_TOGETHER, rows - first)
        score_rows(p, unit, (first, number), (queries + first * width * 2, scores), tile, (here, ahead))
        scale = prepare_scores(p, unit, tile, (first, number, p[at.GROUP]), scores)
        weigh_rows(number, scores, states + first * 8, scale)
        add_rows(p, unit, (first, number), (scores, acc + first * width * 4), tile, (here, ahead))
        ahead = here
        first += number


@kernel
def last_key(p: Any, unit: Any, row: Any, tile: Any) -> Any:
    """The last key of a tile that a row of a unit sees."""
    return min(unit[at.POSITION] + row // p[at.GROUP] - tile[0], tile[1] - 1)


@kernel
def score_rows(p: Any, unit: Any, rows: Any, places: Any, tile: Any, cells: Any) -> Any:
    """Scores of rows (first, number) of a unit. places: (queries, where scores go); cells: as in `attend_many`."""
    width = p[at.WIDTH]
    here, ahead = cells
    row = 0
    while row < rows[1]:
        size = large_patch(rows[1] - row)
        seen = last_key(p, unit, rows[0] + row + size - 1, tile) // CELL + 1
        q, target = places[0] + row * width * 2, places[1] + row * STRIDE * 4
        if seen == TILE // CELL:
            score_four(size, q, (here, ahead), width, target)
        else:
            for cell in range(seen):
                score_cell(size, q, (here + cell * 8, ahead + cell * 8), width, target + cell * CELL * 4)
        ahead = here
        row += size


@kernel
def add_rows(p: Any, unit: Any, rows: Any, places: Any, tile: Any, cells: Any) -> Any:
    """Weighted values into rows (first, number) of a unit. places: (their weights, their accumulators)."""
    width, half = p[at.WIDTH], -(-tile[1] // CELL) * 8
    here, ahead = cells[0] + half, cells[1] + half
    row = 0
    while row < rows[1]:
        size = large_patch(rows[1] - row)
        keys = last_key(p, unit, rows[0] + row + size - 1, tile) + 1
        add_patch(size, places[0] + row * STRIDE * 4, (here, ahead), keys, places[1] + row * width * 4, width, WHOLE)
        ahead = here
        row += size
