"""One tile of a unit over a cache of codes: scores, softmax, weighted values, patch by patch of up to six rows.

    cell of K   [width / 4] lines, one a quad of columns:           key 0 (c .. c + 3)  key 1 (c .. c + 3)  ...  key 15
                4 lines of 16 fp32:                                 step and minimum of K, step and middle of V
    cell of V   [width / 16] chunks of 4 lines, one a quad of keys: column 0 (k .. k + 3)  column 1  ...  column 15

Codes of K are unsigned: step * code + minimum. Those of V are less 128, hence signed: step * code + middle. A block
holds its heads' cells of K one behind the other, each with what scales its keys, then those of V. Units go over them as
over cells of bf16 pairs (kernels_pairs.py); kernels_encode.py writes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paged_attn_cpu import parameters as at
from paged_attn_cpu.kernels_pairs import ROWS_TOGETHER, last_key, patch_rows, prepare_scores
from paged_attn_cpu.microkernels import STRIDE
from paged_attn_cpu.microkernels_codes import (
    add_codes,
    score_codes,
    settle_codes,
    weigh_codes,
)
from paged_attn_cpu.microkernels_pairs import CELL, MOST_ROWS
from paged_attn_cpu.quads import QUAD
from paged_attn_cpu.vectors import LANES, kernel


@kernel
def score_patch(kind: Any, rows: Any, queries: Any, lists: Any, width: Any, scores: Any) -> Any:
    """`score_codes` of one cell."""
    if rows == MOST_ROWS:
        score_codes(49, kind, queries, lists, width, scores)
    elif rows == 4:
        score_codes(33, kind, queries, lists, width, scores)
    elif rows == 3:
        score_codes(25, kind, queries, lists, width, scores)
    elif rows == 2:
        score_codes(17, kind, queries, lists, width, scores)
    else:
        score_codes(9, kind, queries, lists, width, scores)


@kernel
def score_wide_patch(kind: Any, rows: Any, queries: Any, lists: Any, width: Any, scores: Any) -> Any:
    """`score_codes` of two cells."""
    if rows == MOST_ROWS:
        score_codes(50, kind, queries, lists, width, scores)
    elif rows == 4:
        score_codes(34, kind, queries, lists, width, scores)
    elif rows == 3:
        score_codes(26, kind, queries, lists, width, scores)
    elif rows == 2:
        score_codes(18, kind, queries, lists, width, scores)
    else:
        score_codes(10, kind, queries, lists, width, scores)


@kernel
def add_columns(kind: Any, rows: Any, w: Any, lists: Any, count: Any, column: Any, place: Any) -> Any:
    """`add_codes` into two vectors of columns."""
    if rows == MOST_ROWS:
        add_codes(50, kind, w, lists, count, column, place)
    elif rows == 4:
        add_codes(34, kind, w, lists, count, column, place)
    elif rows == 3:
        add_codes(26, kind, w, lists, count, column, place)
    elif rows == 2:
        add_codes(18, kind, w, lists, count, column, place)
    else:
        add_codes(10, kind, w, lists, count, column, place)


@kernel
def add_last_column(kind: Any, rows: Any, w: Any, lists: Any, count: Any, column: Any, place: Any) -> Any:
    """`add_codes` into one vector of columns."""
    if rows == MOST_ROWS:
        add_codes(49, kind, w, lists, count, column, place)
    elif rows == 4:
        add_codes(33, kind, w, lists, count, column, place)
    elif rows == 3:
        add_codes(25, kind, w, lists, count, column, place)
    elif rows == 2:
        add_codes(17, kind, w, lists, count, column, place)
    else:
        add_codes(9, kind, w, lists, count, column, place)


@kernel
def add_code_patch(kind: Any, rows: Any, weights: Any, lists: Any, keys: Any, place: Any) -> Any:
    """sums = digits . codes of a patch of rows, all columns. place: (address of the sums, width)."""
    column, count = 0, -(-keys // QUAD)
    while column + 2 * LANES <= place[1]:
        add_columns(kind, rows, weights, lists, count, column, place)
        column += 2 * LANES
    if column < place[1]:
        add_last_column(kind, rows, weights, lists, count, column, place)


@kernel
def weigh_code_patch(kind: Any, rows: Any, work: Any, scale: Any, cells: Any, width: Any) -> Any:
    """`weigh_codes` of a patch of rows. work: (scores, states)."""
    if rows == MOST_ROWS:
        weigh_codes(6, kind, work[0], work[1], scale, cells, width)
    elif rows == 4:
        weigh_codes(4, kind, work[0], work[1], scale, cells, width)
    elif rows == 3:
        weigh_codes(3, kind, work[0], work[1], scale, cells, width)
    elif rows == 2:
        weigh_codes(2, kind, work[0], work[1], scale, cells, width)
    else:
        weigh_codes(1, kind, work[0], work[1], scale, cells, width)


@kernel
def score_code_rows(p: Any, kind: Any, unit: Any, rows: Any, places: Any, tile: Any, cells: Any) -> Any:
    """Scores of rows (first, number) of a unit for one head. places: (their queries, where scores go); cells: addresses
    of the list and of what the first patch asks for."""
    width = p[at.WIDTH]
    here, ahead = cells
    row = 0
    while row < rows[1]:
        size, cell = patch_rows(rows[1] - row), 0
        seen = last_key(p, unit, rows[0] + row + size - 1, tile) // CELL + 1
        q, target = places[0] + row * width * 4, places[1] + row * STRIDE * 4
        while cell + 2 <= seen:
            score_wide_patch(kind, size, q, (here + cell * 8, ahead + cell * 8), width, target + cell * CELL * 4)
            cell += 2
        if cell < seen:
            score_patch(kind, size, q, (here + cell * 8, ahead + cell * 8), width, target + cell * CELL * 4)
        ahead = here
        row += size


@kernel
def weigh_code_rows(p: Any, kind: Any, unit: Any, rows: Any, places: Any, tile: Any, cells: Any, scale: Any) -> Any:
    """Scores to digits for rows (first, number) of a unit and one head. places: (scores, states); cells: the list's
    address."""
    row = 0
    while row < rows[1]:
        size = patch_rows(rows[1] - row)
        last = last_key(p, unit, rows[0] + row + size - 1, tile) // CELL
        work = (places[0] + row * STRIDE * 4, places[1] + row * 8)
        weigh_code_patch(kind, size, work, scale, (cells, last), p[at.WIDTH])
        row += size


@kernel
def add_code_rows(p: Any, kind: Any, unit: Any, rows: Any, places: Any, tile: Any, cells: Any) -> Any:
    """Weighted values into rows (first, number) of a unit and one head. places: (digits, accumulators, room for sums);
    cells: as in `score_code_rows`."""
    width = p[at.WIDTH]
    here, ahead = cells
    row = 0
    while row < rows[1]:
        size = patch_rows(rows[1] - row)
        keys = last_key(p, unit, rows[0] + row + size - 1, tile) + 1
        digits, acc = places[0] + row * STRIDE * 4, places[1] + row * width * 4
        add_code_patch(kind, size, digits, (here, ahead), keys, (places[2], width))
        for i in range(size):
            settle_codes(digits + i * STRIDE * 4, places[2] + i * width * 4, acc + i * width * 4, width)
        ahead = here
        row += size


@kernel
def attend_few_codes(p: Any, kind: Any, unit: Any, parts: Any, tile: Any, cells: Any, heads: Any) -> Any:
    """A tile into a unit of one token and `heads` heads. parts: (acc, scores, states, queries, room for the sums of a
    patch); tile: (start, count); cells: (address of the list, how many cells ahead are asked for)."""
    acc, scores, states, queries, sums = parts
    group, width = p[at.GROUP], p[at.WIDTH]
    rows, next_head = (np.int64(0), group), p[at.NUM_TOKENS] * group * width * 4
    listed, ahead = -(-tile[1] // CELL) * 8, cells[1] * 8
    for head in range(heads):
        here, places = cells[0] + head * listed, (queries + head * next_head, scores + head * group * STRIDE * 4)
        score_code_rows(p, kind, unit, rows, places, tile, (here, here + ahead))
    scale = prepare_scores(p, unit, tile, (np.int64(0), heads * group, heads * group), scores)
    for head in range(heads):
        work = (scores + head * group * STRIDE * 4, states + head * group * 8)
        weigh_code_rows(p, kind, unit, rows, work, tile, cells[0] + head * listed, scale)
    for head in range(heads):
        here = cells[0] + (heads + head) * listed
        results = (scores + head * group * STRIDE * 4, acc + head * group * width * 4, sums)
        add_code_rows(p, kind, unit, rows, results, tile, (here, here + ahead))


@kernel
def attend_many_codes(p: Any, kind: Any, unit: Any, parts: Any, tile: Any, cells: Any) -> Any:
    """A tile into all rows of a unit of one head. parts: as in `attend_few_codes`; cells: addresses of the list and of
    the next tile's, which the first patch asks for."""
    acc, scores, states, queries, sums = parts
    group, width = p[at.GROUP], p[at.WIDTH]
    half = -(-tile[1] // CELL) * 8
    here, ahead = cells
    first = max(tile[0] - unit[at.POSITION], 0) * group  # those before precede every key of the tile
    while first < unit[at.COUNT] * group:
        rows = (first, min(ROWS_TOGETHER, unit[at.COUNT] * group - first))
        score_code_rows(p, kind, unit, rows, (queries + first * width * 4, scores), tile, (here, ahead))
        scale = prepare_scores(p, unit, tile, (first, rows[1], group), scores)
        weigh_code_rows(p, kind, unit, rows, (scores, states + first * 8), tile, here, scale)
        results = (scores, acc + first * width * 4, sums)
        add_code_rows(p, kind, unit, rows, results, tile, (here + half, ahead + half))
        ahead = here
        first += rows[1]
