"""The first half of a layer's call: rotate, write K and V to their slots, make queries.

Rotation computes in fp32 with separately rounded products, exactly as `x * cos + rotate_half(x) * sin` in torch, and
rounds once to the activation dtype, so that fused and unfused runs see the same bits. Queries go to scratch [kv_heads,
tokens, group, width], padded with zeros: multiplied by the softmax scale in fp32, or as bf16 as they are for kernels in
pairs, which scale the scores. The caller's tensors are left alone. Padding columns of the cache are written as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paged_attn_cpu.elements import FIRST, SECOND, bytes_of, row_offset
from paged_attn_cpu.kernels_cells import store_key, store_value
from paged_attn_cpu.microkernels_rows import clear_row, convert_row, rotate_row
from paged_attn_cpu.vectors import kernel

ONE = np.float32(1.0)


@kernel
def put_row(kinds: Any, here: Any, angles: Any, head_dim: Any, width: Any, scale: Any) -> Any:
    """Write one row, rotated, scaled, padded with zeros from head_dim to width.

    kinds: an element each of the types read and written; here: addresses of source and target; angles: (addresses of
    the token's cosines and sines, how many; 0 = no rotation).
    """
    read, written = kinds
    if angles[2] > 0:
        rotate_row(read, written, here, angles, scale)
    done = 2 * angles[2]
    target = here[1] + done * bytes_of(written)
    convert_row(read, written, (here[0] + done * bytes_of(read), target), head_dim - done, scale)
    clear_row(written, here[1] + head_dim * bytes_of(written), width - head_dim)


@kernel
def write_token(kinds: Any, slot: Any, inputs: Any, cache: Any, angles: Any, sizes: Any, room: Any) -> Any:
    """Write one token's K and V; a negative slot is padding and is skipped.

    kinds: as in `put_row`; inputs: addresses of the token's K and V; cache: its address; sizes: (kv_heads, head_dim,
    width, block_size); room: address where a row may lie if the cache consists of cells, 0 if it does not.
    """
    if slot < 0:
        return
    k, v = inputs
    kv_heads, head_dim, width, block_size = sizes
    unturned = (angles[0], angles[1], FIRST)
    block = slot // block_size
    position = slot - block * block_size
    shape, read, written = (kv_heads, block_size, width), bytes_of(kinds[0]), bytes_of(kinds[1])
    key = FIRST if room > 0 else position
    to_k = cache + row_offset(block, FIRST, FIRST, key, shape) * written
    to_v = cache + row_offset(block, SECOND, FIRST, key, shape) * written
    for _ in range(kv_heads):
        if room > 0:
            put_row(kinds, (k, room), angles, head_dim, width, ONE)
            store_key(room, to_k, position, width)
            put_row(kinds, (v, room), unturned, head_dim, width, ONE)
            store_value(room, to_v, position, width)
        else:
            put_row(kinds, (k, to_k), angles, head_dim, width, ONE)
            put_row(kinds, (v, to_v), unturned, head_dim, width, ONE)
        k, v = k + head_dim * read, v + head_dim * read
        to_k, to_v = to_k + block_size * width * written, to_v + block_size * width * written
