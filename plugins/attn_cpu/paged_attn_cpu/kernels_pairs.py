"""P . V of one tile in pairs of bf16: up to four rows read the cache directly, more share a packed copy."""

from __future__ import annotations

from typing import Any

from paged_attn_cpu.microkernels import STRIDE
from paged_attn_cpu.microkernels_pairs import add_packed, add_values, pack_values
from paged_attn_cpu.vectors import LANES, kernel


@kernel
def pack_tile(addresses: Any, count: Any, packed: Any, width: Any) -> Any:
    """Pack the rows of a list, padded to whole vectors."""
    for pair in range((count + 1) // 2):
        pack_values(addresses + pair * 16, packed + pair * width * 4, width // LANES)


@kernel
def add_wide_patch(left: Any, w: Any, packed: Any, count: Any, column: Any, acc: Any, width: Any) -> Any:
    """Packed values of up to four rows into four vectors of columns."""
    if left >= 4:
        add_packed(36, w, packed, count, column, acc, width)
    elif left == 3:
        add_packed(28, w, packed, count, column, acc, width)
    elif left == 2:
        add_packed(20, w, packed, count, column, acc, width)
    else:
        add_packed(12, w, packed, count, column, acc, width)


@kernel
def add_direct_patch(left: Any, w: Any, here: Any, count: Any, column: Any, acc: Any, width: Any) -> Any:
    """Values in the cache of up to four rows into four vectors of columns."""
    if left >= 4:
        add_values(36, w, here, count, column, acc, width)
    elif left == 3:
        add_values(28, w, here, count, column, acc, width)
    elif left == 2:
        add_values(20, w, here, count, column, acc, width)
    else:
        add_values(12, w, here, count, column, acc, width)


@kernel
def add_column(left: Any, w: Any, here: Any, count: Any, column: Any, acc: Any, width: Any) -> Any:
    """Values in the cache of up to four rows into one vector of columns."""
    if left >= 4:
        add_values(33, w, here, count, column, acc, width)
    elif left == 3:
        add_values(25, w, here, count, column, acc, width)
    elif left == 2:
        add_values(17, w, here, count, column, acc, width)
    else:
        add_values(9, w, here, count, column, acc, width)


@kernel
def add_pairs(weights: Any, rows: Any, lists: Any, packed: Any, count: Any, acc: Any, width: Any) -> Any:
    """acc[rows] = acc * correction + weights . values, in patches of four rows by four vectors.

    lists: (V addresses, addresses of rows to prefetch meanwhile); packed: the packed tile, 0 = none.
    """
    count = (count + 1) // 2
    for row in range(rows[0], rows[1], 4):
        w, target, left = weights + row * STRIDE * 4, acc + row * width * 4, rows[1] - row
        column = 0
        while column + 4 * LANES <= width:
            if packed == 0:
                add_direct_patch(left, w, lists, count, column, target, width)
            else:
                add_wide_patch(left, w, packed, count, column, target, width)
            column += 4 * LANES
        while column < width:
            add_column(left, w, lists, count, column, target, width)
            column += LANES
