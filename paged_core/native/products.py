"""Matrix products as native functions: rows of bf16 times a packed weight, in bf16 pairs or int8 quads (`dots`).

Parameters, int64 (addresses and counts): see the names below; at NEXT are two counters, the next item and the workers
so far. The work is a list of items, each a range of panels times a range of rows; workers claim items one by one. What
an item computes for a row does not depend on the item's borders.

    sums[rows, 64] = inputs . weights         input by input, in scratch that stays in the first cache
    out            = rounded(sums * scale + bias)            PLAIN: bf16; WIDE: the same number, stored as float32
                     silu(gate) * up                         GATED: a panel holds 16 of gate, then 16 of up
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, float32, int32, int64

from paged_core.native.dots import COLUMNS, MOST_ROWS, multiply_pairs, multiply_quads
from paged_core.native.elements import (
    bits_of,
    claim,
    kernel,
    narrowed,
    pointer,
    widened,
)
from paged_core.native.epilogues import store_gated, store_rounded, store_wide
from paged_core.native.matrix import ITEM_ROWS, PANEL
from paged_core.native.vectors import LANES

NEXT, X, X_STRIDE, WEIGHT, PANEL_BYTES, INPUTS, OUT, OUT_STRIDE, OUTPUTS, BIAS, KIND, ITEMS, NUM_ITEMS = range(13)
SUMS, INPUT_SCALES, WEIGHT_SCALES, GROUP = range(13, 17)
NUM_PARAMETERS = 17
PLAIN, WIDE, GATED = range(3)
PANEL_BEGIN, PANEL_END, ROW_BEGIN, ROW_END = range(4)  # of an item

SUMS_BYTES = ITEM_ROWS * COLUMNS * 4  # scratch of one worker
SEGMENT = 2048  # inputs multiplied before the next rows take their turn: 64 outputs of them stay in the second cache
QUAD_SEGMENT = 288  # the same in int8, for the first cache; measured
FEW_QUAD_ROWS = 3  # up to which 64 columns go together in int8

EVERYTHING = 1 << 40  # length given to arrays whose bounds nobody checks


@kernel
def _multiply_pairs(left: Any, wide: Any, x: Any, weights: Any, steps: Any, sums: Any, out: Any, ahead: Any) -> Any:
    """The micro-kernel for up to MOST_ROWS rows and 32 or 64 columns."""
    if wide:
        if left >= 6:
            multiply_pairs(52, x, weights, steps, sums, out, ahead)
        elif left == 5:
            multiply_pairs(44, x, weights, steps, sums, out, ahead)
        elif left == 4:
            multiply_pairs(36, x, weights, steps, sums, out, ahead)
        elif left == 3:
            multiply_pairs(28, x, weights, steps, sums, out, ahead)
        elif left == 2:
            multiply_pairs(20, x, weights, steps, sums, out, ahead)
        else:
            multiply_pairs(12, x, weights, steps, sums, out, ahead)
    elif left >= 6:
        multiply_pairs(50, x, weights, steps, sums, out, ahead)
    elif left == 5:
        multiply_pairs(42, x, weights, steps, sums, out, ahead)
    elif left == 4:
        multiply_pairs(34, x, weights, steps, sums, out, ahead)
    elif left == 3:
        multiply_pairs(26, x, weights, steps, sums, out, ahead)
    elif left == 2:
        multiply_pairs(18, x, weights, steps, sums, out, ahead)
    else:
        multiply_pairs(10, x, weights, steps, sums, out, ahead)


@kernel
def _multiply_quads(left: Any, x: Any, scales: Any, weights: Any, groups: Any, sums: Any, out: Any, ahead: Any) -> Any:
    """The same for int8 and 32 columns."""
    if left >= 6:
        multiply_quads(50, x, scales, weights, groups, sums, out, ahead)
    elif left == 5:
        multiply_quads(42, x, scales, weights, groups, sums, out, ahead)
    elif left == 4:
        multiply_quads(34, x, scales, weights, groups, sums, out, ahead)
    elif left == 3:
        multiply_quads(26, x, scales, weights, groups, sums, out, ahead)
    elif left == 2:
        multiply_quads(18, x, scales, weights, groups, sums, out, ahead)
    else:
        multiply_quads(10, x, scales, weights, groups, sums, out, ahead)


@kernel
def _multiply_wide_quads(
    left: Any, x: Any, scales: Any, weights: Any, groups: Any, sums: Any, out: Any, ahead: Any
) -> Any:
    """The same for up to FEW_QUAD_ROWS rows and 64 columns, which read memory faster."""
    if left >= 3:
        multiply_quads(28, x, scales, weights, groups, sums, out, ahead)
    elif left == 2:
        multiply_quads(20, x, scales, weights, groups, sums, out, ahead)
    else:
        multiply_quads(12, x, scales, weights, groups, sums, out, ahead)


@kernel
def _ahead(here: Any, panel_bytes: Any, steps: Any, turn: Any) -> Any:
    """What comes into the second cache during one of the first four turns: half of what follows in a next panel."""
    return here + (2 + turn // 2) * panel_bytes + turn % 2 * steps * 64


@kernel
def _add_pairs(p: Any, rows: Any, wide: Any, weights: Any, sums: Any, out: Any) -> Any:
    """sums += x . weights in bf16, segment by segment; with the last, what was summed goes to `out`, unless it is 0.

    rows: (first, end); weights: address of the panel; out: where the first row's outputs of the panel go.
    """
    x, stride, panel_bytes = p[X], p[X_STRIDE], p[PANEL_BYTES]
    for begin in range(0, p[INPUTS], SEGMENT):
        steps = min(SEGMENT, p[INPUTS] - begin) // 2
        here = weights + begin * PANEL * 2
        for turn, row in enumerate(range(rows[0], rows[1], MOST_ROWS)):
            inputs = x + row * stride + begin * 2
            ahead = _ahead(here, panel_bytes, steps, turn) if turn < 4 else inputs
            target = (sums + (row - rows[0]) * COLUMNS * 4, int64(begin == 0))
            is_last = out != 0 and begin + SEGMENT >= p[INPUTS]
            place = (out + (row - rows[0]) * p[OUT_STRIDE] if is_last else 0, p[OUT_STRIDE])
            _multiply_pairs(rows[1] - row, wide, (inputs, stride), (here, panel_bytes), steps, target, place, ahead)


@kernel
def _add_quads(p: Any, rows: Any, wide: Any, weights: Any, sums: Any, out: Any) -> Any:
    """The same in int8: whole groups, as many at a time as stay in the first cache while rows change, then the rest."""
    group, size = p[GROUP], p[INPUTS]
    segment = QUAD_SEGMENT if rows[1] - rows[0] > MOST_ROWS else size
    together = max(1, segment // group) * group
    begin = 0
    while begin < size:
        end = begin + together
        if end > size:
            end = size // group * group if size - begin >= group else size
        part = (begin, end, min(group, end - begin))
        target = out if end == size else (0, 0, 0)
        few = rows[1] - rows[0] <= FEW_QUAD_ROWS
        _add_groups(p, rows, wide and few, weights, sums, part, target)
        if wide and not few:
            target = (out[0] + PANEL * 2, out[1], out[2] + PANEL * 4) if target[0] != 0 else target
            _add_groups(p, rows, False, weights + p[PANEL_BYTES], sums + PANEL * 4, part, target)
        begin = end


@kernel
def _add_groups(p: Any, rows: Any, wide: Any, weights: Any, sums: Any, part: Any, out: Any) -> Any:
    """sums += x . weights of a panel, `wide`: of two, for the inputs part = (begin, end, how many share a scale)."""
    begin, end, group = part
    first, num_groups = begin // p[GROUP], (p[INPUTS] + p[GROUP] - 1) // p[GROUP]
    here = weights + first * PANEL * 4 + begin * PANEL
    groups = ((end - begin) // group, group // 4)
    for number, row in enumerate(range(rows[0], rows[1], MOST_ROWS)):
        inputs = (p[X] + begin + row * p[X_STRIDE], p[X_STRIDE])
        ahead = (inputs[0], 0)
        if number < 2:
            ahead = (here + 2 * p[PANEL_BYTES] + number * group * PANEL // 2, group * PANEL + PANEL * 4)
        scales = (p[INPUT_SCALES] + (row * num_groups + first) * 4, num_groups * 4)
        target = (sums + (row - rows[0]) * COLUMNS * 4, int64(begin == 0))
        place = (out[0] + (row - rows[0]) * out[1] if out[0] != 0 else 0, out[1], out[2])
        panels = (here, p[PANEL_BYTES])
        if wide:
            _multiply_wide_quads(rows[1] - row, inputs, scales, panels, groups, target, place, ahead)
        else:
            _multiply_quads(rows[1] - row, inputs, scales, panels, groups, target, place, ahead)


@kernel
def _finish(p: Any, address: Any, row: Any, first: Any, count: Any, element: Any) -> Any:
    """Scale, add the bias, round and store one row's outputs from `first` on; address: of its sums [COLUMNS]."""
    sums = carray(pointer(address), (COLUMNS,), np.float32)
    if p[WEIGHT_SCALES] != 0:
        scales = carray(pointer(p[WEIGHT_SCALES] + first * 4), (EVERYTHING,), np.float32)
        for i in range(count):
            sums[i] *= scales[i]
    if p[BIAS] != 0:
        bias = carray(pointer(p[BIAS] + first * 2), (EVERYTHING,), element)
        for i in range(count):
            sums[i] += widened(bias[i])
    out = p[OUT] + row * p[OUT_STRIDE]
    if p[KIND] == PLAIN:
        plain = carray(pointer(out + first * 2), (EVERYTHING,), element)
        store_rounded(address, out + first * 2, count // LANES)
        for i in range(count // LANES * LANES, count):
            plain[i] = narrowed(sums[i], plain[0])
    elif p[KIND] == WIDE:
        kind = carray(pointer(out), (1,), element)[0]
        exact = carray(pointer(out + first * 4), (EVERYTHING,), np.float32)
        store_wide(address, out + first * 4, count // LANES)
        for i in range(count // LANES * LANES, count):
            exact[i] = widened(narrowed(sums[i], kind))
    else:
        store_gated(address, out + first, count // PANEL)


def product_function(in_quads: bool, sources: str) -> Any:
    """The product of bf16 rows with a packed weight; `in_quads`: of quantised ones (`quantize_function`).

    `sources` is not used; being in the closure it is part of numba's cache key.
    """
    element = np.uint16

    def product(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (NUM_PARAMETERS,), np.int64)
        items = carray(pointer(p[ITEMS]), (EVERYTHING, 4), np.int64)
        sums = p[SUMS] + claim(p[NEXT] + 8, 1) * SUMS_BYTES
        direct = p[KIND] == PLAIN and p[BIAS] == 0  # no scratch between sums and outputs
        number = claim(p[NEXT], 1)
        while number < p[NUM_ITEMS]:
            item = items[number]
            rows = (item[ROW_BEGIN], item[ROW_END])
            for panel in range(item[PANEL_BEGIN], item[PANEL_END], 2):
                columns = min(2, item[PANEL_END] - panel) * PANEL
                count = min(columns, p[OUTPUTS] - panel * PANEL)
                here = p[WEIGHT] + panel * p[PANEL_BYTES]
                out = p[OUT] + rows[0] * p[OUT_STRIDE] + panel * PANEL * 2 if direct and count == columns else 0
                if in_quads:
                    place = (out, p[OUT_STRIDE], p[WEIGHT_SCALES] + panel * PANEL * 4)
                    _add_quads(p, rows, columns == COLUMNS, here, sums, place)
                else:
                    _add_pairs(p, rows, columns == COLUMNS, here, sums, out)
                for i in range(rows[1] - rows[0] if out == 0 else 0):
                    _finish(p, sums + i * COLUMNS * 4, rows[0] + i, panel * PANEL, count, element)
            number = claim(p[NEXT], 1)

    return product


@kernel
def _largest(x: Any, size: Any) -> Any:
    """The largest magnitude of bf16 numbers; NaN if one is not finite. Magnitudes order as their bits do."""
    largest = np.uint16(0)
    for i in range(size):
        largest = max(largest, np.uint16(x[i] & np.uint16(0x7FFF)))
    return widened(largest) if largest < np.uint16(0x7F80) else float32(np.nan)


@kernel
def _quantize(x: Any, out: Any, size: Any, factor: Any) -> Any:
    """out = 128 + x * factor, rounded to nearest; adding 1.5 * 2 ** 23 leaves the integer in the low bits."""
    for i in range(size):
        shifted = widened(x[i]) * factor + float32(12582912.0)
        out[i] = np.uint8(bits_of(shifted) - int32(0x4B400000) + int32(128))


Q_NEXT, Q_X, Q_X_STRIDE, Q_OUT, Q_SCALES, Q_ROWS, Q_SIZE, Q_GROUP = range(8)
_TINY = 1e-30  # instead of the scale of zeros


def quantize_function(sources: str) -> Any:
    """Rows of bf16 to bytes 128 + x / scale, and a float32 scale for each group. `sources` as in `product_function`."""

    def quantize(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (8,), np.int64)
        size, group = p[Q_SIZE], p[Q_GROUP]
        num_groups = (size + group - 1) // group
        row = claim(p[Q_NEXT], 1)
        while row < p[Q_ROWS]:
            x = carray(pointer(p[Q_X] + row * p[Q_X_STRIDE]), (EVERYTHING,), np.uint16)
            out = carray(pointer(p[Q_OUT] + row * size), (EVERYTHING,), np.uint8)
            scales = carray(pointer(p[Q_SCALES] + row * num_groups * 4), (num_groups,), np.float32)
            for number in range(num_groups):
                begin = number * group
                count = min(group, size - begin)
                largest = _largest(x[begin:], count)
                scales[number] = largest * float32(1 / 127)
                _quantize(x[begin:], out[begin:], count, float32(127.0) / (largest + float32(_TINY)))
            row = claim(p[Q_NEXT], 1)

    return quantize
