"""The first half of a layer's call: workers claim tokens, rotate and write them, and make queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import CODES, FIRST, by_kind, bytes_of, claim, observe, pointer
from paged_attn_cpu.kernels_encode import write_codes, write_digits
from paged_attn_cpu.kernels_write import put_row, write_token
from paged_attn_cpu.planning import PREPARE_TOKENS
from paged_attn_cpu.vectors import kernel


def _write_elements(kind: Any, arguments: Any) -> Any:
    p, kinds, slot, new, angles, sizes, (to_cells, _, room) = arguments
    write_token(kinds, slot, new, p[at.CACHE], angles, sizes, room if to_cells else FIRST)


def _write_codes(kind: Any, arguments: Any) -> Any:
    p, kinds, slot, new, angles, sizes, (_, row, room) = arguments
    write_codes(kinds[0], slot, new, p[at.CACHE], angles, sizes, (row, room))


def _query_elements(kind: Any, arguments: Any) -> Any:
    kinds, here, angles, shape, scale, _ = arguments
    put_row(kinds, here, angles, shape[0], shape[1], scale)


def _query_digits(kind: Any, arguments: Any) -> Any:
    kinds, here, angles, shape, _, (_, row, room) = arguments
    write_digits(kinds[0], here, angles, shape, (row, room))


put_token = by_kind(lambda kind: _write_codes if kind in CODES else _write_elements)
"""One token's K and V into the cache: (p, kinds, slot, both addresses, angles, sizes, spread), as `write_token`."""
put_query = by_kind(lambda kind: _query_digits if kind in CODES else _query_elements)
"""One query into scratch: (kinds, its address and scratch's, angles, shape, scale, spread), as `put_row`."""


@kernel
def prepare(kind: Any, p: Any, item: Any, kinds: Any, scale: Any, spread: Any) -> Any:
    """Rotate and write PREPARE_TOKENS tokens.

    kinds: an element each of what comes in, of the cache and of the queries; scale: what multiplies queries; spread:
    (whether the cache consists of cells, room for a row of elements, its address).
    """
    group, head_dim, width = p[at.GROUP], p[at.HEAD_DIM], p[at.WIDTH]
    num_tokens, half, size = p[at.NUM_TOKENS], p[at.HALF], bytes_of(kinds[0])
    slots = carray(pointer(p[at.SLOTS]), (num_tokens,), np.int64)
    sizes = (p[at.KV_HEADS], head_dim, width, p[at.BLOCK_SIZE])
    query_row = width * bytes_of(kinds[2])
    for token in range(item * PREPARE_TOKENS, min((item + 1) * PREPARE_TOKENS, num_tokens)):
        angles = (p[at.COS] + token * half * 4, p[at.SIN] + token * half * 4, half)
        new = (p[at.K] + token * p[at.K_STRIDE] * size, p[at.V] + token * p[at.V_STRIDE] * size)
        put_token(kind, (p, (kinds[0], kinds[1]), slots[token], new, angles, sizes, spread))
        query = p[at.Q] + token * p[at.Q_STRIDE] * size
        for head in range(p[at.KV_HEADS]):
            target = p[at.QUERIES] + (head * num_tokens + token) * group * query_row
            for _ in range(group):
                here = (query, target)
                put_query(kind, ((kinds[0], kinds[2]), here, angles, (head_dim, width), scale, spread))
                query, target = query + head_dim * size, target + query_row


@kernel
def prepare_all(kind: Any, p: Any, kinds: Any, scale: Any, spread: Any) -> Any:
    """`prepare` items until none is left, then wait for those of the other workers."""
    counters = p[at.COUNTERS]
    while True:
        item = claim(counters + at.NEXT_PREPARE * 8, 1)
        if item >= p[at.NUM_PREPARE]:
            break
        prepare(kind, p, item, kinds, scale, spread)
        claim(counters + at.PREPARED * 8, 1)
    while observe(counters + at.PREPARED * 8) < p[at.NUM_PREPARE]:
        pass
