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

from paged_attn_triton.tiles import attend_range, load_queries, nothing_seen, result_of, scales_of, store_results


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
        full = tl.minimum((tl.maximum(high - window + 1, 0) + TILE - 1) // TILE * TILE, high + 1)
        diagonal = tl.maximum(diagonal, full)
    return first, full, diagonal


@triton.jit
def tile_of(query_start_ptr, num_seqs, TILE_QUERIES: tl.constexpr, SEARCH: tl.constexpr):
    """This program's tile: (sequence, its first token, tokens before the tile's, and from there on, or 0 for none)."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    seq = sequence_of(tile, query_start_ptr, num_seqs, TILE_QUERIES, SEARCH)
    start = tl.load(query_start_ptr + seq)
    num_queries = tl.load(query_start_ptr + seq + 1) - start
    skipped = (tile - start // TILE_QUERIES - seq) * TILE_QUERIES
    left = tl.where(num_queries > 1, tl.maximum(num_queries - skipped, 0), 0)
    return seq, start, skipped, left


@triton.jit(do_not_specialize=["stride_table_row", "window", "num_seqs"])
def prefill_kernel(
    out_ptr, lse_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM], and its log-sum-exp or None
    q_ptr, kv_ptr, k_scales_ptr, v_scales_ptr, query_start_ptr, seq_lens_ptr, rows_ptr, tables_ptr,
    stride_out_token, stride_q_token, stride_table_row, scale, softcap, window, num_seqs,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, IN_CODES: tl.constexpr, BY_HARDWARE: tl.constexpr, WIDENED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Attend with all tokens of the sequences that compute more than one."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    seq, start, skipped, left = tile_of(query_start_ptr, num_seqs, TILE_QUERIES, SEARCH)
    if left == 0:
        return
    # rows: query after query, each with all heads of the group
    kv_head, rows, dims = tl.program_id(1), tl.arange(0, ROWS), tl.arange(0, WIDTH)
    tokens = (start + skipped + rows // GROUP).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    real = rows < tl.minimum(left, TILE_QUERIES) * GROUP
    mask = real[:, None] & (dims < HEAD_DIM)[None, :]
    places = (heads * HEAD_DIM)[:, None] + dims[None, :]
    q = load_queries(q_ptr + (tokens * stride_q_token)[:, None] + places, mask, WIDENED)
    factor, v_factor = scales_of(k_scales_ptr, v_scales_ptr, kv_head, IN_CODES)
    # keys before the diagonal are seen by all rows, so they need no mask
    table_ptr = tables_ptr + tl.load(rows_ptr + seq).to(tl.int64) * stride_table_row
    low = tl.load(seq_lens_ptr + seq) - left
    high = low + tl.minimum(TILE_QUERIES, left) - 1
    first, full, diagonal = visible_tiles(low, high, window, HAS_WINDOW, TILE)
    positions, layer, state = low + rows // GROUP, (scale * factor, softcap, window), nothing_seen(ROWS, WIDTH)
    if HAS_WINDOW:
        state = attend_range(
            state, first, full, q, kv_ptr, table_ptr, kv_head, positions, high, layer,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, True, HAS_SOFTCAP, TILE, True,
        )  # fmt: skip
    state = attend_range(
        state, full, diagonal, q, kv_ptr, table_ptr, kv_head, positions, high, layer,
        NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, False, HAS_SOFTCAP, TILE, False,
    )  # fmt: skip
    state = attend_range(
        state, diagonal, high + 1, q, kv_ptr, table_ptr, kv_head, positions, high, layer,
        NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, HAS_WINDOW, HAS_SOFTCAP, TILE, True,
    )  # fmt: skip
    result, lse = result_of(state, v_factor)
    places += (tokens * stride_out_token)[:, None]
    store_results(out_ptr, lse_ptr, places, tokens * NUM_HEADS + heads, result, lse, mask, real)
