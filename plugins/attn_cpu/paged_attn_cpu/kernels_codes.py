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
from paged_attn_cpu.kernels_pairs import patch_rows, prepare_scores
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

FRESH = np.int64(1)  # not a literal: kernels are compiled anew for those


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
def add_columns(kind: Any, rows: Any, w: Any, lists: Any, count: Any, column: Any, place: Any, fresh: Any) -> Any:
    """`add_codes` into two vectors of columns."""
    if rows == MOST_ROWS:
        add_codes(50, kind, w, lists, count, column, place, fresh)
    elif rows == 4:
        add_codes(34, kind, w, lists, count, column, place, fresh)
    elif rows == 3:
        add_codes(26, kind, w, lists, count, column, place, fresh)
    elif rows == 2:
        add_codes(18, kind, w, lists, count, column, place, fresh)
    else:
        add_codes(10, kind, w, lists, count, column, place, fresh)


@kernel
def add_last_column(kind: Any, rows: Any, w: Any, lists: Any, count: Any, column: Any, place: Any, fresh: Any) -> Any:
    """`add_codes` into one vector of columns."""
    if rows == MOST_ROWS:
        add_codes(49, kind, w, lists, count, column, place, fresh)
    elif rows == 4:
        add_codes(33, kind, w, lists, count, column, place, fresh)
    elif rows == 3:
        add_codes(25, kind, w, lists, count, column, place, fresh)
    elif rows == 2:
        add_codes(17, kind, w, lists, count, column, place, fresh)
    else:
        add_codes(9, kind, w, lists, count, column, place, fresh)


@kernel
def add_code_patch(kind: Any, rows: Any, weights: Any, lists: Any, keys: Any, place: Any, fresh: Any) -> Any:
    """sums (+)= digits . codes of a patch of rows, all columns. place: (address of the sums, width)."""
    column, count = 0, -(-keys // QUAD)
    while column + 2 * LANES <= place[1]:
        add_columns(kind, rows, weights, lists, count, column, place, fresh)
        column += 2 * LANES
    if column < place[1]:
        add_last_column(kind, rows, weights, lists, count, column, place, fresh)


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
def settle_rows(rows: Any, scores: Any, sums: Any, acc: Any, width: Any) -> Any:
    """`settle_codes` of several rows."""
    for row in range(rows):
        settle_codes(scores + row * STRIDE * 4, sums + row * width * 4, acc + row * width * 4, width)


@kernel
def attend_few_codes(p: Any, kind: Any, unit: Any, parts: Any, tile: Any, cells: Any, heads: Any) -> Any:
    """As `attend_few`; the last of `parts` are the addresses of sums."""
    acc, scores, states, queries, sums = parts
    group, width = p[at.GROUP], p[at.WIDTH]
    count, num_cells = tile[1], -(-tile[1] // CELL)
    entry, ahead = cells[0], cells[1] * 8
    for cell in range(num_cells):
        for head in range(heads):
            row = 0
            while row < group:
                size = patch_rows(group - row)
                q = queries + (head * p[at.NUM_TOKENS] * group + row) * width * 4
                target = scores + ((head * group + row) * STRIDE + cell * CELL) * 4
                score_patch(kind, size, q, (entry, entry + ahead), width, target)
                row += size
            entry += 8
    scale = prepare_scores(p, unit, tile, (np.int64(0), heads * group, heads * group), scores)
    for head in range(heads):
        row = 0
        while row < group:
            size, place = patch_rows(group - row), head * group + row
            work = (scores + place * STRIDE * 4, states + place * 8)
            weigh_code_patch(kind, size, work, scale, (cells[0] + head * 8, heads * 8, num_cells - 1), width)
            row += size
    for cell in range(num_cells):
        for head in range(heads):
            row = 0
            while row < group:
                size, place = patch_rows(group - row), head * group + row
                weights, keys = scores + place * STRIDE * 4 + cell * CELL, min(CELL, count - cell * CELL)
                lists, fresh = (entry, entry + ahead), np.int64(cell == 0)
                add_code_patch(kind, size, weights, lists, keys, (sums + place * width * 4, width), fresh)
                row += size
            entry += 8
    settle_rows(heads * group, scores, sums, acc, width)


@kernel
def attend_many_codes(p: Any, kind: Any, unit: Any, parts: Any, tile: Any, cells: Any) -> Any:
    """As `attend_many`; the last of `parts` are the addresses of sums."""
    acc, scores, states, queries, sums = parts
    group, width = p[at.GROUP], p[at.WIDTH]
    start, count = tile
    rows, half = unit[at.COUNT] * group, -(-count // CELL) * 8
    row = max(start - unit[at.POSITION], 0) * group  # those before precede every key of the tile
    here, ahead = cells
    while row < rows:
        size = patch_rows(rows - row)
        last = min(unit[at.POSITION] + (row + size - 1) // group - start, count - 1)
        seen, cell, q = last // CELL + 1, 0, queries + row * width * 4
        while cell + 2 <= seen:
            score_wide_patch(kind, size, q, (here + cell * 8, ahead + cell * 8), width, scores + cell * CELL * 4)
            cell += 2
        if cell < seen:
            score_patch(kind, size, q, (here + cell * 8, ahead + cell * 8), width, scores + cell * CELL * 4)
        scale = prepare_scores(p, unit, tile, (row, size, group), scores)
        weigh_code_patch(kind, size, (scores, states + row * 8), scale, (here, np.int64(8), seen - 1), width)
        add_code_patch(kind, size, scores, (here + half, ahead + half), last + 1, (sums, width), FRESH)
        settle_rows(size, scores, sums, acc + row * width * 4, width)
        ahead = here
        row += size
