"""Prefill: several query tokens a sequence, whole prompts or chunks, against the paged cache that holds them already.

Grid (num_tokens // TILE_QUERIES + num_seqs, NUM_KV_HEADS): an upper bound on the tiles of queries that any division of
the tokens among the sequences makes. Sequence i owns the tiles from query_start[i] // TILE_QUERIES + i on; those that
it does not need leave at once, and so do sequences with a single token. A tile's rows are its queries times the heads
that share the KV head. The last tiles, which see the longest contexts, start first.

    keys      0 ..... first visible ....... all visible ........ first query's own ..... last query's own
    tiles      (none)  | masked (a window)  |      no mask       |        masked         |   (none)
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from paged_attn_triton.tiles import attend_tile, result_of


@triton.jit
def sequence_of(tile, query_start_ptr, num_seqs, TILE_QUERIES: tl.constexpr, SEARCH: tl.constexpr):
    """The sequence that owns a tile: the last whose first tile is not behind it. SEARCH of them are read at once."""
    count = 0
    for begin in tl.range(0, num_seqs, SEARCH):
        seqs = begin + tl.arange(0, SEARCH)
        starts = tl.load(query_start_ptr + seqs, mask=seqs < num_seqs, other=0)
        owns = (seqs < num_seqs) & (starts // TILE_QUERIES + seqs <= tile)
        count += tl.sum(owns.to(tl.int32), 0)
    return count - 1


@triton.jit
def visible_tiles(low, high, window, HAS_WINDOW: tl.constexpr, TILE: tl.constexpr):
    """Where the tiles of keys begin that rows at positions low .. high see: masked from the first, without a mask from
    the second, masked again from the third on."""
    first = 0
    full = 0
    diagonal = (low + 1) // TILE * TILE
    if HAS_WINDOW:
        first = tl.maximum(low - window + 1, 0) // TILE * TILE
        full = tl.minimum(tl.cdiv(tl.maximum(high - window + 1, 0), TILE) * TILE, high + 1)
        diagonal = tl.maximum(diagonal, full)
    return first, full, diagonal


@triton.jit(do_not_specialize=["stride_table_row", "window", "num_seqs"])
def prefill_kernel(
    # what is written: out [num_tokens, NUM_HEADS, HEAD_DIM], and its log-sum-exp or None
    out_ptr, lse_ptr,
    # what is read
    q_ptr, kv_ptr, k_scales_ptr, v_scales_ptr, query_start_ptr, seq_lens_ptr, rows_ptr, tables_ptr,
    # strides, the layer, lengths
    stride_out_token, stride_q_token, stride_table_row, scale, softcap, window, num_seqs,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, IN_CODES: tl.constexpr, BY_HARDWARE: tl.constexpr, WIDENED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Attend with all tokens of the sequences that compute more than one."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = sequence_of(tile, query_start_ptr, num_seqs, TILE_QUERIES, SEARCH)
    start = tl.load(query_start_ptr + seq)
    num_queries = tl.load(query_start_ptr + seq + 1) - start
    skipped = (tile - start // TILE_QUERIES - seq) * TILE_QUERIES
    if (num_queries <= 1) | (skipped >= num_queries):
        return

    # rows: query after query, each with all heads of the group
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    queries = skipped + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    tokens = (start + queries).to(tl.int64)
    real = (rows < TILE_QUERIES * GROUP) & (queries < num_queries)
    mask = real[:, None] & (dims < HEAD_DIM)[None, :]
    places = (heads * HEAD_DIM)[:, None] + dims[None, :]
    q = tl.load(q_ptr + (tokens * stride_q_token)[:, None] + places, mask=mask, other=0.0)
    if WIDENED:
        q = q.to(tl.float32)
    factor = 1.0
    if IN_CODES:
        scale *= tl.load(k_scales_ptr + kv_head)
        factor = tl.load(v_scales_ptr + kv_head)

    # keys before the diagonal are seen by all rows, so they need no mask
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    table_ptr = tables_ptr + tl.load(rows_ptr + seq).to(tl.int64) * stride_table_row
    low = tl.load(seq_lens_ptr + seq) - num_queries + skipped
    high = low + tl.minimum(TILE_QUERIES, num_queries - skipped) - 1
    positions = low + rows // GROUP
    first, full, diagonal = visible_tiles(low, high, window, HAS_WINDOW, TILE)
    if HAS_WINDOW:
        for begin in tl.range(first, full, TILE):
            acc, highest, total = attend_tile(
                acc, highest, total, q, kv_ptr, table_ptr, kv_head, begin, positions, high, scale, softcap, window,
                NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, True, HAS_SOFTCAP, TILE, True,
            )  # fmt: skip
    for begin in tl.range(full, diagonal, TILE):
        acc, highest, total = attend_tile(
            acc, highest, total, q, kv_ptr, table_ptr, kv_head, begin, positions, high, scale, softcap, window,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, False, HAS_SOFTCAP, TILE, False,
        )  # fmt: skip
    for begin in tl.range(diagonal, high + 1, TILE):
        acc, highest, total = attend_tile(
            acc, highest, total, q, kv_ptr, table_ptr, kv_head, begin, positions, high, scale, softcap, window,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, HAS_WINDOW, HAS_SOFTCAP, TILE, True,
        )  # fmt: skip

    result, lse = result_of(acc, highest, total, factor)
    tl.store(out_ptr + (tokens * stride_out_token)[:, None] + places, result, mask=mask)
    if lse_ptr is not None:
        tl.store(lse_ptr + tokens * NUM_HEADS + heads, lse * 0.6931471805599453, mask=real)
