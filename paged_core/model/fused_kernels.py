"""The native functions behind `paged_core.model.fused`; compiled by numba, so plain loops that LLVM vectorises.

Parameters, int64: counter, eps, x, delta, weight, out (addresses), rows, size, rows per claimed item; for norms also
how many rows lie one behind the other, and elements from the first of those to the first of the next.
The arithmetic is float32; stored elements are rounded where the plain operators round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, float32

from paged_core.native.elements import claim, exp, kernel, narrowed, pointer, summing_kernel, widened

NUM_PARAMETERS = 11
EVERYTHING = 1 << 40  # length given to arrays whose bounds nobody checks


@summing_kernel
def _square_mean(row: Any, size: Any) -> Any:
    """Mean of squares. The sum may be taken in several running sums, always in the same order for one size."""
    total = float32(0.0)
    for i in range(size):
        value = widened(row[i])
        total += value * value
    return total / float32(size)


@kernel
def _add(x: Any, delta: Any, size: Any) -> Any:
    for i in range(size):
        x[i] = narrowed(widened(x[i]) + widened(delta[i]), x[i])


@kernel
def _scale(x: Any, scale: Any, weight: Any, out: Any, size: Any) -> Any:
    for i in range(size):
        normed = widened(narrowed(widened(x[i]) * scale, x[i]))
        out[i] = narrowed(widened(weight[i]) * normed, x[i])


@kernel
def _gate(gate: Any, up: Any, out: Any, size: Any) -> Any:
    for i in range(size):
        value = widened(gate[i])
        activated = widened(narrowed(value / (float32(1.0) + exp(-value)), gate[i]))
        out[i] = narrowed(activated * widened(up[i]), gate[i])


def norm_function(element: Any, sources: str) -> Any:
    """x += delta (if there is one); out = rmsnorm(x) * weight, rounded before and after the weight.

    `sources` is not used; being in the closure it is part of numba's cache key.
    """

    def norm(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (NUM_PARAMETERS,), np.int64)
        eps = carray(pointer(p[1]), (1,), np.float32)[0]
        x, out = carray(pointer(p[2]), (EVERYTHING,), element), carray(pointer(p[5]), (EVERYTHING,), element)
        delta, weight = carray(pointer(p[3]), (EVERYTHING,), element), carray(pointer(p[4]), (EVERYTHING,), element)
        adds, rows, size, several, together, stride = p[3] != 0, p[6], p[7], p[8], p[9], p[10]
        item = claim(p[0], 1)
        while item * several < rows:
            for row in range(item * several, min((item + 1) * several, rows)):
                begin = row // together * stride + row % together * size
                end = begin + size
                here = x[begin:end]
                if adds:
                    _add(here, delta[begin:end], size)
                scale = float32(1.0) / np.sqrt(_square_mean(here, size) + eps)
                _scale(here, scale, weight[:size], out[begin:end], size)
            item = claim(p[0], 1)

    return norm


def gate_function(element: Any, sources: str) -> Any:
    """out = silu(gate) * up, the activation rounded before it is multiplied. `sources` as in `norm_function`."""

    def gate(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (NUM_PARAMETERS,), np.int64)
        x, out = carray(pointer(p[2]), (EVERYTHING,), element), carray(pointer(p[5]), (EVERYTHING,), element)
        rows, size, several = p[6], p[7], p[8]
        item = claim(p[0], 1)
        while item * several < rows:
            for row in range(item * several, min((item + 1) * several, rows)):
                gates, ups = 2 * row * size, (2 * row + 1) * size
                _gate(x[gates:ups], x[ups : ups + size], out[row * size : (row + 1) * size], size)
            item = claim(p[0], 1)

    return gate
