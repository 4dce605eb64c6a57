"""write_kernel: keys and values go to their slots, rotated and narrowed on the way; queries are rotated beside them.

A program takes TILE_TOKENS tokens of one head: program ids along the second axis are the KV heads, then, if anything
is rotated, the query heads.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from paged_attn_triton.e4m3 import encode_e4m3


@triton.jit
def _store(targets, dims, x, mask, scale, IN_CODES: tl.constexpr):
    """Store activations [tokens, dims] behind the pointers [tokens]."""
    if IN_CODES:
        x = encode_e4m3(tl.div_rn(x.to(tl.float32), scale))
    tl.store(targets[:, None] + dims[None, :], x, mask=mask)


@triton.jit
def _move(
    sources, targets, inside, cos_ptrs, sin_ptrs, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, HALF_WIDTH: tl.constexpr, IN_CODES: tl.constexpr,
):  # fmt: skip
    """Rows behind `sources` go behind `targets`, pointers [tokens] to their first elements.

    The leading 2 * HALF elements are rotated in float32 and rounded once, to the activations' type.
    """
    if HALF > 0:
        dims = tl.arange(0, HALF_WIDTH)
        mask = inside[:, None] & (dims < HALF)[None, :]
        first = tl.load(sources[:, None] + dims[None, :], mask=mask, other=0.0)
        second = tl.load(sources[:, None] + HALF + dims[None, :], mask=mask, other=0.0)
        cos = tl.load(cos_ptrs[:, None] + dims[None, :], mask=mask, other=0.0)
        sin = tl.load(sin_ptrs[:, None] + dims[None, :], mask=mask, other=0.0)
        x, y = first.to(tl.float32), second.to(tl.float32)
        _store(targets, dims, (x * cos - y * sin).to(first.dtype), mask, scale, IN_CODES)
        _store(targets + HALF, dims, (y * cos + x * sin).to(first.dtype), mask, scale, IN_CODES)
    if 2 * HALF < HEAD_DIM:
        dims = tl.arange(0, WIDTH)
        mask = inside[:, None] & ((dims >= 2 * HALF) & (dims < HEAD_DIM))[None, :]
        rest = tl.load(sources[:, None] + dims[None, :], mask=mask, other=0.0)
        _store(targets, dims, rest, mask, scale, IN_CODES)


@triton.jit(do_not_specialize=["num_tokens"])
def write_kernel(
    # what is read: [num_tokens, heads, HEAD_DIM], int64 [num_tokens], float32 [num_tokens, HALF]; scales of KV heads
    q_ptr, k_ptr, v_ptr, slots_ptr, cos_ptr, sin_ptr, k_scales_ptr, v_scales_ptr,
    # what is written: the layer's cache, and rotated queries [num_tokens, NUM_HEADS, HEAD_DIM]
    kv_ptr, rotated_ptr,
    # strides and lengths
    stride_q_token, stride_k_token, stride_v_token, stride_cos_token, stride_sin_token, num_tokens,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, IN_CODES: tl.constexpr,
    HALF: tl.constexpr, HALF_WIDTH: tl.constexpr, TILE_TOKENS: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(num_tokens / TILE_TOKENS), NUM_KV_HEADS + (NUM_HEADS where HALF > 0))."""
    tokens = (tl.program_id(0) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)).to(tl.int64)
    head = tl.program_id(1)
    inside = tokens < num_tokens
    cos_ptrs, sin_ptrs = cos_ptr, sin_ptr
    if HALF > 0:
        cos_ptrs = cos_ptr + tokens * stride_cos_token
        sin_ptrs = sin_ptr + tokens * stride_sin_token
    if head < NUM_KV_HEADS:
        # where the slots lie: a block holds keys, then values, each [NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM]
        slots = tl.load(slots_ptr + tokens, mask=inside, other=-1)
        inside = slots >= 0
        rows = (slots // BLOCK_SIZE * 2 * NUM_KV_HEADS + head) * BLOCK_SIZE + slots % BLOCK_SIZE
        slot_ptrs = kv_ptr + rows * HEAD_DIM
        k_scale, v_scale = 1.0, 1.0
        if IN_CODES:
            k_scale = tl.load(k_scales_ptr + head)
            v_scale = tl.load(v_scales_ptr + head)
        # keys are rotated, values are not
        keys = k_ptr + tokens * stride_k_token + head * HEAD_DIM
        values = v_ptr + tokens * stride_v_token + head * HEAD_DIM
        _move(keys, slot_ptrs, inside, cos_ptrs, sin_ptrs, k_scale, HEAD_DIM, WIDTH, HALF, HALF_WIDTH, IN_CODES)
        slot_ptrs += NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
        _move(values, slot_ptrs, inside, cos_ptrs, sin_ptrs, v_scale, HEAD_DIM, WIDTH, 0, HALF_WIDTH, IN_CODES)
    elif HALF > 0:  # else there is neither a program nor a buffer for queries
        queries = q_ptr + tokens * stride_q_token + (head - NUM_KV_HEADS) * HEAD_DIM
        targets = rotated_ptr + (tokens * NUM_HEADS + head - NUM_KV_HEADS) * HEAD_DIM
        _move(queries, targets, inside, cos_ptrs, sin_ptrs, 1.0, HEAD_DIM, WIDTH, HALF, HALF_WIDTH, False)
