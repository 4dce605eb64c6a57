"""The Triton kernels behind `paged_core.model.gpu_fused`. A row's sum has one order: it is one program's affair.

Sizes of a model are constants of a kernel, numbers of rows are not: nothing is compiled anew for a batch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["stride_x", "stride_out"])
def norm_kernel(
    # tensors
    x_ptr,
    delta_ptr,
    weight_ptr,
    out_ptr,
    # elements between tokens
    stride_x,
    stride_out,
    eps,
    # constants of the model
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):
    """RMSNorm of row (token, head) of x, to which delta's row is added first, in place; delta lies as out does."""
    row = tl.program_id(0).to(tl.int64)
    token, head = row // HEADS, row % HEADS
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    x_row = x_ptr + token * stride_x + head * SIZE + column
    out_offset = token * stride_out + head * SIZE + column
    x = tl.load(x_row, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + out_offset, mask=inside, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
        tl.store(x_row, x, mask=inside)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / SIZE
    normed = wide * tl.rsqrt(mean + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    if weight.dtype != tl.float32:  # rounded before it is multiplied, as the reference does; Gemma's weight is float32
        normed = normed.to(x.dtype).to(tl.float32)
    out = (weight.to(tl.float32) * normed).to(x.dtype)
    tl.store(out_ptr + out_offset, out, mask=inside)


@triton.jit
def gate_kernel(gate_up_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) * up of a row [gate, up], both rounded as two operators would."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    begin = gate_up_ptr + row * 2 * SIZE + column
    gate = tl.load(begin, mask=inside, other=0.0)
    up = tl.load(begin + SIZE, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    out = (activated.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)
    tl.store(out_ptr + row * SIZE + column, out, mask=inside)
