"""Decode: one query token a sequence, against its keys and values in parts that are merged afterwards.

Grid (NUM_KV_HEADS, num_seqs, num_splits): the query heads that share a KV head are the rows of one program, so keys
and values are read once for all of them. A sequence uses as many parts as its length is worth; programs beyond them
leave at once, and so do those of sequences that compute more than one token.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from paged_attn_triton.tiles import attend_tile, result_of


@triton.jit
def parts_of(length, window, num_splits, split_tokens, HAS_WINDOW: tl.constexpr, TILE: tl.constexpr):
    """(first position read, number of parts, positions in each): whole tiles, for the visible part of a context."""
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0) // TILE * TILE
    context = length - first
    parts = tl.minimum(tl.maximum(tl.cdiv(context, split_tokens), 1), num_splits)
    return first, parts, tl.cdiv(tl.cdiv(context, parts), TILE) * TILE


@triton.jit(do_not_specialize=["stride_table_row", "window", "split_tokens"])
def decode_kernel(
    # what is written: out [num_tokens, NUM_HEADS, HEAD_DIM], its log-sum-exp or None, and what parts leave: float32
    # [num_seqs, NUM_HEADS, num_splits, HEAD_DIM] and [num_seqs, NUM_HEADS, num_splits]
    out_ptr, lse_ptr, parts_ptr, parts_lse_ptr,
    # what is read
    q_ptr, kv_ptr, k_scales_ptr, v_scales_ptr, query_start_ptr, seq_lens_ptr, rows_ptr, tables_ptr,
    # strides, the layer, and the rule of parts
    stride_out_token, stride_q_token, stride_table_row, scale, softcap, window, split_tokens,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, IN_CODES: tl.constexpr, BY_HARDWARE: tl.constexpr, WIDENED: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend with the only token of each sequence that has only one; a sequence of length 0 gets zeros."""
    kv_head, seq, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) != token + 1:
        return
    num_splits = tl.num_programs(2)
    length = tl.load(seq_lens_ptr + seq)
    first, num_parts, share = parts_of(length, window, num_splits, split_tokens, HAS_WINDOW, TILE)
    if part >= num_parts:
        return

    # the heads of the group, padded to what a tensor core takes
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    heads = kv_head * GROUP + tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    real = (tl.arange(0, ROWS) < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    places = heads[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + token.to(tl.int64) * stride_q_token + places, mask=real, other=0.0)
    if WIDENED:
        q = q.to(tl.float32)
    factor = 1.0
    if IN_CODES:
        scale *= tl.load(k_scales_ptr + kv_head)
        factor = tl.load(v_scales_ptr + kv_head)

    # its part of the context, tile by tile
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    positions = tl.zeros([ROWS], tl.int32) + length - 1
    table_ptr = tables_ptr + tl.load(rows_ptr + seq).to(tl.int64) * stride_table_row
    begin = first + part * share
    for tile in tl.range(begin, tl.minimum(begin + share, length), TILE):
        acc, highest, total = attend_tile(
            acc, highest, total, q, kv_ptr, table_ptr, kv_head, tile, positions, length - 1, scale, softcap, window,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, HAS_WINDOW, HAS_SOFTCAP, TILE, True,
        )  # fmt: skip

    # the answer, or a part of it that the merge takes up; an empty part weighs nothing there
    result, lse = result_of(acc, highest, total, factor)
    real_heads = tl.arange(0, ROWS) < GROUP
    if num_parts == 1:
        tl.store(out_ptr + token.to(tl.int64) * stride_out_token + places, result, mask=real)
        if lse_ptr is not None:
            tl.store(lse_ptr + token * NUM_HEADS + heads, lse * 0.6931471805599453, mask=real_heads)
    else:
        slots = (seq * NUM_HEADS + heads).to(tl.int64) * num_splits + part
        tl.store(parts_ptr + slots[:, None] * HEAD_DIM + dims[None, :], result, mask=real)
        tl.store(parts_lse_ptr + slots, lse, mask=real_heads)


@triton.jit(do_not_specialize=["num_splits", "window", "split_tokens"])
def merge_kernel(
    out_ptr, lse_ptr, parts_ptr, parts_lse_ptr, query_start_ptr, seq_lens_ptr,
    stride_out_token, num_splits, window, split_tokens,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_WINDOW: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Grid (NUM_HEADS, num_seqs): the parts of a decode become its answer, PARTS of them at a time."""
    head, seq = tl.program_id(0), tl.program_id(1)
    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) != token + 1:
        return
    length = tl.load(seq_lens_ptr + seq)
    num_parts = parts_of(length, window, num_splits, split_tokens, HAS_WINDOW, TILE)[1]
    if num_parts == 1:
        return

    # the first part has keys, so the highest is a number from the first round on
    dims = tl.arange(0, WIDTH)
    acc = tl.zeros([WIDTH], tl.float32)
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

    tl.store(out_ptr + token.to(tl.int64) * stride_out_token + head * HEAD_DIM + dims, acc / total, mask=dims < HEAD_DIM)
    if lse_ptr is not None:
        tl.store(lse_ptr + token * NUM_HEADS + head, (highest + tl.log2(total)) * 0.6931471805599453)
