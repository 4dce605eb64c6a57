"""Pairs of bf16 in LLVM: the instructions of AVX512-BF16, and an exp that is quick with AVX-512.

A vector of pairs is <16 x i32>, the first of a pair in the lower half of a lane. For numba the kind of such an element
is uint32. Nothing here may be emitted unless the processor `has_pairs`.
"""

from __future__ import annotations

from llvmlite import ir

from paged_attn_cpu import vectors as v
from paged_attn_cpu.vectors import I16, I32, LANES, VF32
from paged_core.native.vectors import EXP2_POLYNOMIAL, call
from paged_core.native.vectors import LOG2_E as LOG2_E

VPAIRS = ir.VectorType(I16, 2 * LANES)


# ---- instructions --------------------------------------------------------------------------------------------------


def add_products(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """total + a[1] * b[1] + a[0] * b[0] in every lane; total in fp32, a and b pairs of bf16 in <16 x i32>."""
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF32, [total, a, b])


def narrow(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two vectors of fp32 as 32 bf16 in order, rounded to nearest even."""
    return call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", VPAIRS, [high, low])


_LEAST_POWER = -200.0  # 2 ** -200 is zero in fp32


def exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp of every lane for x <= 0, as `exp2` of a multiple; 1 at 0."""
    return exp2(builder, builder.fmul(x, v.constant(LOG2_E)))


def exp2(builder: ir.IRBuilder, power: ir.Value) -> ir.Value:
    """2 ** power of every lane, powers <= 0 (-inf and NaN included), relative error at most 2e-7; nine instructions."""
    least = v.constant(_LEAST_POWER)
    power = builder.select(builder.fcmp_ordered("<", power, least), least, power)
    whole = call(builder, f"llvm.roundeven.v{LANES}f32", VF32, [power])
    rest = builder.fsub(power, whole)
    p: ir.Value = v.constant(EXP2_POLYNOMIAL[0])
    for coefficient in EXP2_POLYNOMIAL[1:]:
        p = v.fma(builder, p, rest, v.constant(coefficient))
    return call(builder, "llvm.x86.avx512.mask.scalef.ps.512", VF32, [p, whole, p, I16(-1), I32(4)])
