"""The native entry points: what a thread of the team runs. Compiled once per dtype pair and cached on disk.

One call does a whole layer. Workers claim items from atomic counters, so any number of them (also fewer than asked
for) finishes the work, and nothing depends on which worker did what:

    claim tokens   -> rotate, write K and V, make queries
    wait           -> until every claimed token item is done (its claimer is running, so this ends)
    claim units    -> attend; the worker that finishes a sequence's last split merges all of them. Units that many
                      sequences share come first, for others wait for their results
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numba import carray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.elements import claim, observe, pointer
from paged_attn_cpu.kernels_attend import workspace, workspace_rows
from paged_attn_cpu.kernels_cells import in_cells
from paged_attn_cpu.kernels_merge import keep_partial, merge_partials, shared_counter, write_rows
from paged_attn_cpu.kernels_prepare import prepare_all
from paged_attn_cpu.kernels_units import attend, takes_heads
from paged_attn_cpu.vectors import kernel
from paged_core.native.compile import compile_native
from paged_core.native.compile import source_digest as digest_of

__all__ = ["compile_native", "copy_function", "make_layer_function", "source_digest"]

CLAIMED_LATE = 8  # last units per worker that are claimed only when the worker is free
EVERYTHING = 1 << 40  # length given to arrays whose bounds nobody checks


@kernel
def attend_all(p: Any, parts: Any, kind: Any, element_bytes: Any, out: Any) -> Any:
    """Claim units, attend and store, until none is left."""
    counters = p[at.COUNTERS]
    units = carray(pointer(p[at.UNITS]), (EVERYTHING, at.UNIT_FIELDS), np.int64)
    heads = p[at.HEADS]
    blocks = p[at.KV_HEADS] // heads
    total = p[at.NUM_UNITS] * blocks
    item = claim(counters + at.NEXT_UNIT * 8, 1)
    while item < total:
        unit, first = units[item // blocks], item % blocks * heads
        # claiming one ahead lets its first tile be fetched early; near the end others may be idle by then
        early = item + CLAIMED_LATE * observe(counters + at.WORKERS * 8) < total
        coming = min(claim(counters + at.NEXT_UNIT * 8, 1), total) if early else item
        beyond = min(coming, total - 1)
        later = units[beyond // blocks]
        together = heads if takes_heads(unit) else 1
        for head in range(first, first + heads, together):
            following = (unit, (head + together, together))
            if head + together == first + heads:
                following = (later, (beyond % blocks * heads, heads if takes_heads(later) else 1))
            attend(kind, (p, unit, (head, together), parts, element_bytes, following))
            finish_heads(p, unit, (head, together), parts, out)
        item = coming if early else claim(counters + at.NEXT_UNIT * 8, 1)


@kernel
def finish_heads(p: Any, unit: Any, heads: Any, parts: Any, out: Any) -> Any:
    """Finish a unit for KV heads (first, number), whose results lie one behind the other in `parts`."""
    if unit[at.FIRST_MEMBER] >= 0:
        finish_shared(p, unit, heads[0], parts, out)
        return
    rows = unit[at.COUNT] * p[at.GROUP]
    for i in range(heads[1]):
        here = (parts[0] + i * rows * p[at.WIDTH] * 4, parts[1], parts[2] + i * rows * 8)
        finish_unit(p, unit, heads[0] + i, here, out)


@kernel
def finish_unit(p: Any, unit: Any, head: Any, parts: Any, out: Any) -> Any:
    """Store a unit's result, or keep it and merge when it was its sequence's last."""
    if unit[at.MERGE] < 0:
        write_rows(p, unit, head, parts[0], parts[2], out)
        return
    keep_partial(p, unit, head, parts[0], parts[2])
    count_part(p, unit, head, parts, out)


@kernel
def count_part(p: Any, unit: Any, head: Any, parts: Any, out: Any) -> Any:
    """One more part of a split sequence is kept; with the last one, merge all and store."""
    counter = p[at.COUNTERS] + (at.FIRST_MERGE + unit[at.MERGE] * p[at.KV_HEADS] + head) * 8
    if claim(counter, 1) == unit[at.PARTS] - 1:
        merge_partials(p, unit, head, parts)
        write_rows(p, unit, head, parts[0], parts[2], out)


@kernel
def finish_shared(p: Any, unit: Any, head: Any, parts: Any, out: Any) -> Any:
    """Leave every member of a shared unit its part, complete or for its own unit to go on from."""
    members = carray(pointer(p[at.MEMBERS]), (EVERYTHING, at.UNIT_FIELDS), np.int64)
    first, group = unit[at.FIRST_MEMBER], p[at.GROUP]
    for i in range(unit[at.COUNT]):
        member = members[first + i]
        keep_partial(p, member, head, parts[0] + i * group * p[at.WIDTH] * 4, parts[2] + i * group * 8)
    claim(p[at.COUNTERS] + shared_counter(p, unit, head) * 8, 1)
    for i in range(unit[at.COUNT]):  # merging uses the accumulators, so all are kept by now
        if members[first + i, at.END] == unit[at.END]:
            count_part(p, members[first + i], head, (parts[0], parts[1], parts[2]), out)


def make_layer_function(element: Any, cache_element: Any, in_pairs: bool, sources: str) -> Any:
    """The Python function behind one entry point: activations of type `element`, cache of type `cache_element`.

    cache_element: uint8 for codes that are multiplied by instruction, int8 for codes without. in_pairs: multiply bf16
    pairs by instruction (both elements must be bf16); else all elements but codes are widened to fp32.
    `sources` is not used by it; being in its closure it is part of numba's cache key (see `source_digest`).
    """
    element_bytes = np.dtype(cache_element).itemsize
    tile_element, query_element = (np.uint32, np.uint16) if in_pairs else (cache_element, np.float32)
    row_element = np.float32 if element_bytes == 1 else cache_element

    def layer(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (at.NUM_PARAMETERS,), np.int64)
        counters = p[at.COUNTERS]
        out = carray(pointer(p[at.OUT]), (EVERYTHING,), element)
        scale = np.float32(1.0) if in_pairs else carray(pointer(p[at.CONSTANTS]), (2,), np.float32)[at.SCALE]
        kind = tile_element(0)
        worker = claim(counters + at.WORKERS * 8, 1)
        if worker >= p[at.MAX_WORKERS]:
            return
        parts = workspace(p, worker, workspace_rows(p))
        spread = (in_pairs and in_cells(p), carray(pointer(parts[1]), (EVERYTHING,), row_element), parts[1])
        prepare_all(kind, p, (element(0), cache_element(0), query_element(0)), scale, spread)
        attend_all(p, parts, kind, element_bytes, out)

    return layer


def copy_function(sources: str) -> Any:
    """The Python function behind block copies: parameters [counters, layers, sources, targets, pairs, num, words]."""

    def copy(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (7,), np.int64)
        from_, to = carray(pointer(p[2]), (p[1],), np.int64), carray(pointer(p[3]), (p[1],), np.int64)
        pairs = carray(pointer(p[4]), (p[5], 2), np.int64)
        words = p[6]
        while True:
            item = claim(p[0], 1)
            if item >= p[1] * p[5]:
                break
            layer, pair = item // p[5], item % p[5]
            source = carray(pointer(from_[layer] + pairs[pair, 0] * words * 8), (words,), np.int64)
            target = carray(pointer(to[layer] + pairs[pair, 1] * words * 8), (words,), np.int64)
            for i in range(words):
                target[i] = source[i]

    return copy


NOT_COMPILED = frozenset({"__init__", "provider", "backend", "calls", "blocks", "bench_shared"})


def source_digest() -> str:
    """A hash of the sources that the machine code of this plugin depends on."""
    return digest_of(file for file in Path(__file__).parent.glob("*.py") if file.stem not in NOT_COMPILED)
