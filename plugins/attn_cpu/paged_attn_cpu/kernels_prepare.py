"""The first half of a layer's call: workers claim tokens, rotate and write them, and make queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import CODES, by_kind, claim, observe, pointer
from paged_attn_cpu.kernels_encode import write_codes, write_digits
from paged_attn_cpu.kernels_write import store_row, write_token
from paged_attn_cpu.planning import PREPARE_TOKENS
from paged_attn_cpu.vectors import kernel


def _write_elements(kind: Any, arguments: Any) -> Any:
    _, token, slot, inputs, cache, angles, sizes, (to_cells, row, _) = arguments
    write_token(token, slot, inputs, cache, angles, sizes, (to_cells, row))


def _write_codes(kind: Any, arguments: Any) -> Any:
    p, token, slot, inputs, _, angles, sizes, (_, row, address) = arguments
    write_codes(token, slot, inputs, p[at.CACHE], angles, sizes, (row, address))


def _query_elements(kind: Any, arguments: Any) -> Any:
    _, source, queries, target, angles, shape, _ = arguments
    store_row(source[0], source[1], queries[0], target, angles, shape, queries[1])


def _query_digits(kind: Any, arguments: Any) -> Any:
    p, source, queries, target, angles, shape, (_, row, address) = arguments
    write_digits(source, p[at.QUERIES] + target * 4, angles, shape, (row, address), queries[1])


put_token = by_kind(lambda kind: _write_codes if kind in CODES else _write_elements)
"""One token's K and V into the cache: (p, token, slot, inputs, cache, angles, sizes, spread), as `write_token`."""
put_query = by_kind(lambda kind: _query_digits if kind in CODES else _query_elements)
"""One query into scratch: (p, (elements, index of the first), queries, target element, angles, shape, spread)."""


@kernel
def prepare(kind: Any, p: Any, item: Any, inputs: Any, cache: Any, angles: Any, queries: Any, spread: Any) -> Any:
    """Rotate and write PREPARE_TOKENS tokens.

    inputs: (q, k, v); angles: (cos, sin); queries: (where q goes, what it is multiplied by); spread: (whether the cache
    consists of cells, room for a row of elements, its address).
    """
    q, k, v = inputs
    kv_heads, group, head_dim, width = p[at.KV_HEADS], p[at.GROUP], p[at.HEAD_DIM], p[at.WIDTH]
    num_tokens, half = p[at.NUM_TOKENS], p[at.HALF]
    slots = carray(pointer(p[at.SLOTS]), (num_tokens,), np.int64)
    sizes, shape = (kv_heads, head_dim, width, p[at.BLOCK_SIZE]), (head_dim, width)
    for token in range(item * PREPARE_TOKENS, min((item + 1) * PREPARE_TOKENS, num_tokens)):
        here = (angles[0], angles[1], token * half, half)
        new = (k, v, p[at.K_STRIDE], p[at.V_STRIDE])
        put_token(kind, (p, token, slots[token], new, cache, here, sizes, spread))
        for head in range(kv_heads * group):
            target = ((head // group * num_tokens + token) * group + head % group) * width
            put_query(kind, (p, (q, token * p[at.Q_STRIDE] + head * head_dim), queries, target, here, shape, spread))


@kernel
def prepare_all(kind: Any, p: Any, inputs: Any, cache: Any, angles: Any, queries: Any, spread: Any) -> Any:
    """`prepare` items until none is left, then wait for those of the other workers."""
    counters = p[at.COUNTERS]
    while True:
        item = claim(counters + at.NEXT_PREPARE * 8, 1)
        if item >= p[at.NUM_PREPARE]:
            break
        prepare(kind, p, item, inputs, cache, angles, queries, spread)
        claim(counters + at.PREPARED * 8, 1)
    while observe(counters + at.PREPARED * 8) < p[at.NUM_PREPARE]:
        pass
