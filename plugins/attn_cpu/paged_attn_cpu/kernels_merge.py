"""What becomes of a unit's accumulators: kept for later, merged by log-sum-exp, or stored as results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import pointer
from paged_attn_cpu.microkernels import add_scaled, exp_row
from paged_attn_cpu.microkernels_rows import convert_row
from paged_attn_cpu.vectors import LANES, kernel

INFINITY = np.float32(np.inf)


@kernel
def copy_floats(source: Any, target: Any, count: Any) -> Any:
    """Copy `count` fp32 elements from one address to another."""
    read, written = carray(pointer(source), (count,), np.float32), carray(pointer(target), (count,), np.float32)
    for i in range(count):
        written[i] = read[i]


@kernel
def shared_counter(p: Any, unit: Any, head: Any) -> Any:
    """Index of the counter that tells whether a shared unit has left its results for one KV head."""
    return at.FIRST_MERGE + (p[at.NUM_MERGES] + unit[at.SHARED]) * p[at.KV_HEADS] + head


@kernel
def write_rows(p: Any, unit: Any, head: Any, acc: Any, states: Any, out: Any) -> Any:
    """Divide by the softmax sums and store the unit's rows (and their log-sum-exp) in the output's dtype."""
    width, group, head_dim = p[at.WIDTH], p[at.GROUP], p[at.HEAD_DIM]
    state = carray(pointer(states), (1 << 40,), np.float32)
    lse = carray(pointer(p[at.LSE]), (1 << 40,), np.float32)
    for row in range(unit[at.COUNT] * group):
        token = unit[at.TOKEN] + row // group
        query_head = head * group + row % group
        total = state[2 * row + 1]
        factor = np.float32(0.0) if total == 0 else np.float32(1.0) / total
        target = token * p[at.OUT_STRIDE] + query_head * head_dim
        addresses = (acc + row * width * 4, out.ctypes.data + target * out.itemsize)
        convert_row(np.float32(0.0), out[0], addresses, head_dim, factor)
        if p[at.LSE] != 0:
            lse[token * p[at.KV_HEADS] * group + query_head] = state[2 * row] + np.float32(math.log(total))


@kernel
def keep_partial(p: Any, unit: Any, head: Any, acc: Any, states: Any) -> Any:
    """Save a split's accumulators and states, for the merge or for the unit that goes on from there."""
    size = p[at.GROUP] * p[at.WIDTH]
    index = unit[at.PARTIAL] * p[at.KV_HEADS] + head
    copy_floats(acc, p[at.PARTIALS] + index * size * 4, size)
    copy_floats(states, p[at.PARTIAL_STATES] + index * 2 * p[at.GROUP] * 4, 2 * p[at.GROUP])


@kernel
def merge_partials(p: Any, unit: Any, head: Any, parts: Any) -> Any:
    """Combine all splits of a sequence in order of position, into the accumulators and states of `parts`."""
    acc, scores, states = parts[0], parts[1], parts[2]
    width, group, kv_heads = p[at.WIDTH], p[at.GROUP], p[at.KV_HEADS]
    total = carray(pointer(acc), (group * width,), np.float32)
    state = carray(pointer(states), (2 * group,), np.float32)
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
            add_scaled(p[at.PARTIALS] + row * width * 4, acc + g * width * 4, width // LANES, weight)
        state[2 * g] = highest
        state[2 * g + 1] = summed
