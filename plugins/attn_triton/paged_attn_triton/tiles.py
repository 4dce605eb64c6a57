"""What decode and prefill share: a tile of keys through the block table, logits, and the running softmax.

A layer's cache is [num_blocks, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM]: index 0 of the second axis holds keys, 1 values.
Logits are in units of log2: exp2 is what the hardware has. Elements of `WIDTH`, the power of two that holds a head,
beyond HEAD_DIM are zero.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from paged_attn_triton.e4m3 import decode_e4m3


@triton.jit
def key_rows(
    table_ptr, begin, keys, visible, kv_head,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Where the key rows of positions `keys` = begin .. begin + TILE - 1 start: int64 elements from the cache's start.

    `begin` is a multiple of TILE. Only entries of visible positions are read from the table.
    """
    if BLOCK_SIZE % TILE == 0:  # the whole tile lies in one block
        blocks = tl.load(table_ptr + begin // BLOCK_SIZE)
    elif MASKED:
        blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=visible, other=0)
    else:
        blocks = tl.load(table_ptr + keys // BLOCK_SIZE)
    rows = (blocks.to(tl.int64) * 2 * NUM_KV_HEADS + kv_head) * BLOCK_SIZE
    return rows * HEAD_DIM + keys % BLOCK_SIZE * HEAD_DIM


@triton.jit
def load_tile(
    kv_ptr, offsets, visible,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr, IN_CODES: tl.constexpr,
    BY_HARDWARE: tl.constexpr, TRANSPOSED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Rows at `offsets` as DTYPE: [TILE, WIDTH], or [WIDTH, TILE] when TRANSPOSED; zeros where they are not visible.

    Slots that are not visible may hold NaN, and 0 * NaN is NaN: they are not even read.
    """
    dims = tl.arange(0, WIDTH)
    # Codes without a conversion in hardware are widened the other way round and then turned. Else the compiler moves
    # the widening into a tensor core's operand, where every warp does it for the whole tile: 12 KB of spills.
    TURNED: tl.constexpr = IN_CODES and not BY_HARDWARE
    if TRANSPOSED != TURNED:
        ptrs = kv_ptr + offsets[None, :] + dims[:, None]
        mask = visible[None, :] & (dims < HEAD_DIM)[:, None]
    else:
        ptrs = kv_ptr + offsets[:, None] + dims[None, :]
        mask = visible[:, None] & (dims < HEAD_DIM)[None, :]
    tile = tl.load(ptrs, mask=mask, other=0) if MASKED or HEAD_DIM < WIDTH else tl.load(ptrs)
    if TURNED:
        return tl.trans(decode_e4m3(tile, DTYPE, False))
    elif IN_CODES:
        return decode_e4m3(tile, DTYPE, True)
    else:
        return tile.to(DTYPE)


@triton.jit
def logits_of(q, k, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """log2(e) * softcapped q.k * scale, float32 [rows, keys]."""
    x = tl.dot(q, k, input_precision="ieee") * scale
    if HAS_SOFTCAP:
        # tanh by one exponential that cannot overflow
        ratio = x / softcap
        shrunk = tl.exp2(tl.abs(ratio) * -2.8853900817779268)  # 2 * log2(e)
        bounded = softcap * ((1.0 - shrunk) / (1.0 + shrunk))
        x = tl.where(ratio < 0, -bounded, bounded)
    return x * 1.4426950408889634


@triton.jit
def accumulate(acc, highest, total, x, v, MAY_BE_EMPTY: tl.constexpr):
    """The running softmax over one tile more: (acc [rows, WIDTH], highest logit [rows], sum of weights [rows]).

    MAY_BE_EMPTY: a row may have seen no key yet; its weights are zero, not exp2(inf - inf).
    """
    top = tl.maximum(highest, tl.max(x, 1))
    reference = top
    if MAY_BE_EMPTY:
        reference = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(x - reference[:, None])
    decay = tl.exp2(highest - reference)
    total = total * decay + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    return acc, top, total


@triton.jit
def attend_tile(
    acc, highest, total, q, kv_ptr, table_ptr, kv_head, begin, positions, last, scale, softcap, window,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    IN_CODES: tl.constexpr, BY_HARDWARE: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Rows of queries at `positions`, none behind `last`, meet the keys begin .. begin + TILE - 1.

    Without MASKED every row sees every key of the tile.
    """
    keys = begin + tl.arange(0, TILE)
    present = keys <= last
    if HAS_WINDOW:
        present = present & (keys > tl.min(positions, 0) - window)
    offsets = key_rows(table_ptr, begin, keys, present, kv_head, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, MASKED)
    k = load_tile(kv_ptr, offsets, present, HEAD_DIM, WIDTH, q.dtype, IN_CODES, BY_HARDWARE, True, MASKED)
    x = logits_of(q, k, scale, softcap, HAS_SOFTCAP)
    if MASKED:
        seen = keys[None, :] <= tl.minimum(positions, last)[:, None]
        if HAS_WINDOW:
            seen = seen & (keys[None, :] > positions[:, None] - window)
        x = tl.where(seen, x, float("-inf"))
    offsets += NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    v = load_tile(kv_ptr, offsets, present, HEAD_DIM, WIDTH, q.dtype, IN_CODES, BY_HARDWARE, False, MASKED)
    return accumulate(acc, highest, total, x, v, MASKED and HAS_WINDOW)


@triton.jit
def attend_range(
    state, begin, end, q, kv_ptr, table_ptr, kv_head, positions, last, layer,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    IN_CODES: tl.constexpr, BY_HARDWARE: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """`attend_tile` for the tiles that start at `begin`, ... before `end`; `layer` is (scale, softcap, window)."""
    acc, highest, total = state
    scale, softcap, window = layer
    for tile in tl.range(begin, end, TILE):
        acc, highest, total = attend_tile(
            acc, highest, total, q, kv_ptr, table_ptr, kv_head, tile, positions, last, scale, softcap, window,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, BLOCK_SIZE, IN_CODES, BY_HARDWARE, HAS_WINDOW, HAS_SOFTCAP, TILE, MASKED,
        )  # fmt: skip
    return acc, highest, total


@triton.jit
def nothing_seen(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The state of rows that saw no key yet: (acc, highest logit, sum of weights)."""
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    return tl.full([ROWS, WIDTH], 0.0, tl.float32), highest, tl.full([ROWS], 0.0, tl.float32)


@triton.jit
def load_queries(ptrs, mask, WIDENED: tl.constexpr):
    """Rows of queries, zeros where masked; WIDENED: as float32."""
    q = tl.load(ptrs, mask=mask, other=0.0)
    return q.to(tl.float32) if WIDENED else q


@triton.jit
def scales_of(k_scales_ptr, v_scales_ptr, kv_head, IN_CODES: tl.constexpr):
    """What the numbers that keys and values are stored as are to be multiplied by."""
    if IN_CODES:
        return tl.load(k_scales_ptr + kv_head), tl.load(v_scales_ptr + kv_head)
    else:
        return 1.0, 1.0


@triton.jit
def result_of(state, factor):
    """(result [rows, WIDTH], its log-sum-exp in units of log2 [rows]); zeros and -inf for rows that saw no key."""
    acc, highest, total = state
    result = tl.where((total == 0.0)[:, None], 0.0, acc / total[:, None]) * factor
    return result, highest + tl.log2(total)


@triton.jit
def store_results(out_ptr, lse_ptr, places, lse_places, result, lse, mask, rows_mask):
    """The answers of rows, and their log-sum-exp in units of e where it is wanted."""
    tl.store(out_ptr + places, result, mask=mask)
    if lse_ptr is not None:
        tl.store(lse_ptr + lse_places, lse * 0.6931471805599453, mask=rows_mask)
