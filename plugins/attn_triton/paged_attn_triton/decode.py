"""Decode: one query token a sequence, against its keys and values in parts that are merged afterwards.

Grid (NUM_KV_HEADS, num_seqs, num_splits): the query heads that share a KV head are the rows of one program, so keys
and values are read once for all of them. A sequence uses as many parts as its length is worth; programs beyond them
leave at once, and so do those of sequences that compute more than one token.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from paged_attn_triton.tiles import attend_range, load_queries, nothing_seen, result_of, scales_of, store_results


@triton.jit
def single_token(query_start_ptr, seq):
    """(a sequence's first token, whether it computes no other)."""
    start = tl.load(query_start_ptr + seq)
    return start.to(tl.int64), tl.load(query_start_ptr + seq + 1) == start + 1


@triton.jit
def parts_of(length, window, num_splits, split_tokens, HAS_WINDOW: tl.constexpr, TILE: tl.constexpr):
    """(first position read, number of parts, positions in each): whole tiles, for the visible part of a context."""
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0) // TILE * TILE
    context = length - first
    parts = tl.minimum(tl.maximum((context + split_tokens - 1) // split_tokens, 1), num_splits)
    share = (context + parts - 1) // parts
    return first, parts, (share + TILE - 1) // TILE * TILE


@triton.jit(do_not_specialize=["stride_table_row", "window", "split_tokens"])
def decode_kernel(
    # written: out [num_tokens, NUM_HEADS, HEAD_DIM], its log-sum-exp or None, and what parts leave: float32
    # [num_seqs, NUM_HEADS, num_splits, HEAD_DIM] and [num_seqs, NUM_HEADS, num_splits]
    out_ptr, lse_ptr, parts_ptr, parts_lse_ptr,
    q_ptr, kv_ptr, k_scales_ptr, v_scales_ptr, query_start_ptr, seq_lens_ptr, rows_ptr, tables_ptr,
    stride_out_token, stride_q_token, stride_table_row, scale, softcap, window, split_tokens,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, IN_CODES: tl.constexpr, BY_HARDWARE: tl.constexpr, WIDENED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend with the only token of each sequence that has only one; a sequence of length 0 gets zeros."""
    kv_head, seq, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token, is_alone = single_token(query_start_ptr, seq)
    length = tl.load(seq_lens_ptr + seq)
    num_splits = tl.num_programs(2)
    first, num_parts, share = parts_of(length, window, num_splits, split_tokens, HAS_WINDOW, TILE)
    if (not is_alone) | (part >= num_parts):
        return
    # the heads of the group, padded to what a tensor core takes
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    in_group = tl.arange(0, ROWS) < GROUP
    heads = kv_head * GROUP + tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    places = heads[:, None] * HEAD_DIM + dims[None, :]
    mask = in_group[:, None] & (dims < HEAD_DIM)[None, :]
    q = load_queries(q_ptr + token * stride_q_token + places, mask, WIDENED)
    factor, v_factor = scales_of(k_scales_ptr, v_scales_ptr, kv_head, IN_CODES)
    # its part of the context, tile by tile
    table_ptr = tables_ptr + tl.load(rows_ptr + seq).to(tl.int64) * stride_table_row
    begin = first + part * share
    positions = tl.full([ROWS], 0, tl.int32) + length - 1
    state = attend_range(
        nothing_seen(ROWS, WIDTH), begin, tl.minimum(begin + share, length), q, kv_ptr, table_ptr, kv_head, positions,
        length - 1, (scale * factor, softcap, window),
        NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, HAS_WINDOW, HAS_SOFTCAP, TILE, True,
    )  # fmt: skip
    # the answer, or a part of it for the merge, where an empty one weighs nothing
    result, lse = result_of(state, v_factor)
    if num_parts == 1:
        lse_places = token * NUM_HEADS + heads
        store_results(out_ptr + token * stride_out_token, lse_ptr, places, lse_places, result, lse, mask, in_group)
    else:
        slots = (seq * NUM_HEADS + heads).to(tl.int64) * num_splits + part
        tl.store(parts_ptr + slots[:, None] * HEAD_DIM + dims[None, :], result, mask=mask)
        tl.store(parts_lse_ptr + slots, lse, mask=in_group)


@triton.jit(do_not_specialize=["num_splits", "window", "split_tokens"])
def merge_kernel(
    out_ptr, lse_ptr, parts_ptr, parts_lse_ptr, query_start_ptr, seq_lens_ptr,
    stride_out_token, num_splits, window, split_tokens,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_WINDOW: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Grid (NUM_HEADS, num_seqs): the parts of a decode become its answer, PARTS of them at a time."""
    head, seq = tl.program_id(0), tl.program_id(1)
    token, is_alone = single_token(query_start_ptr, seq)
    length = tl.load(seq_lens_ptr + seq)
    _, num_parts, _ = parts_of(length, window, num_splits, split_tokens, HAS_WINDOW, TILE)
    if (not is_alone) | (num_parts == 1):
        return

    # the first part has keys, so the highest is a number from the first round on
    dims = tl.arange(0, WIDTH)
    acc = tl.full([WIDTH], 0.0, tl.float32)
    highest, total = float("-inf"), 0.0
    base = (seq * NUM_HEADS + head).to(tl.int64) * num_splits
    for begin in tl.range(0, num_parts, PARTS):
        parts = begin + tl.arange(0, PARTS)
        lse = tl.load(parts_lse_ptr + base + parts, mask=parts < num_parts, other=float("-inf"))
        mask = (parts < num_parts)[:, None] & (dims < HEAD_DIM)[None, :]
        results = tl.load(parts_ptr + (base + parts)[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        top = tl.maximum(highest, tl.max(lse, 0))
        weights = tl.exp2(lse - top)
        decay = tl.exp2(highest - top)
        acc = acc * decay + tl.sum(weights[:, None] * results, 0)
        total = total * decay + tl.sum(weights, 0)
        highest = top

    places = token * stride_out_token + head * HEAD_DIM + dims
    lse = highest + tl.log2(total)
    store_results(out_ptr, lse_ptr, places, token * NUM_HEADS + head, acc / total, lse, dims < HEAD_DIM, True)
