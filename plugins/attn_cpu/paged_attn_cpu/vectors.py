"""Sixteen fp32 lanes at a time: the few LLVM vector operations the kernels are made of.

Everything here emits plain LLVM vector IR (no processor intrinsics), so the same source becomes zmm, two ymm or four
NEON registers. No fast-math flag is set and every sum has one fixed order: a result depends on its operands alone,
which is what makes the backend batch-invariant.

Element kinds are told apart by the numba type that stores them: float32; uint16 = bf16 bits; int16 = fp16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types

from paged_core.native.elements import emit as emit
from paged_core.native.elements import kernel as kernel
from paged_core.native.vectors import F32 as F32
from paged_core.native.vectors import I16 as I16
from paged_core.native.vectors import I32 as I32
from paged_core.native.vectors import I64 as I64
from paged_core.native.vectors import LANES as LANES
from paged_core.native.vectors import LOG2_E
from paged_core.native.vectors import VF32 as VF32
from paged_core.native.vectors import VI16 as VI16
from paged_core.native.vectors import VI32 as VI32
from paged_core.native.vectors import address_of as address_of
from paged_core.native.vectors import constant as constant
from paged_core.native.vectors import element_bytes as element_bytes
from paged_core.native.vectors import fma as fma
from paged_core.native.vectors import fold as fold
from paged_core.native.vectors import integers as integers
from paged_core.native.vectors import load as load
from paged_core.native.vectors import prefetch as prefetch
from paged_core.native.vectors import shuffle as shuffle
from paged_core.native.vectors import splat as splat
from paged_core.native.vectors import store as store

if TYPE_CHECKING:
    from collections.abc import Callable

# ---- element kinds -------------------------------------------------------------------------------------------------


def stored(kind: types.Type) -> ir.Type:
    """LLVM type of one stored element of a kind; uint32 are pairs of bf16."""
    return F32 if kind == types.float32 else I32 if kind == types.uint32 else I16


def widen(builder: ir.IRBuilder, bits: ir.Value, kind: types.Type) -> ir.Value:
    """Stored elements (a vector or a scalar) to fp32, exactly; pairs stay pairs."""
    if kind in (types.float32, types.uint32):
        return bits
    wide = ir.VectorType(I32, bits.type.count) if isinstance(bits.type, ir.VectorType) else I32
    real = ir.VectorType(F32, bits.type.count) if isinstance(bits.type, ir.VectorType) else F32
    whole = builder.zext(bits, wide)
    if kind == types.uint16:  # bf16 is the upper half of an fp32
        return builder.bitcast(builder.shl(whole, _like(wide, 16)), real)
    return _widen_fp16(builder, whole, wide, real)


def _widen_fp16(builder: ir.IRBuilder, whole: ir.Value, wide: ir.Type, real: ir.Type) -> ir.Value:
    """fp16 bits to fp32 by arithmetic: no F16C needed, subnormals normalised by the multiplication.

    Exponent and mantissa move into place, 2 ** 112 corrects the bias; infinities and NaNs get the full exponent.
    """
    magnitude = builder.shl(builder.and_(whole, _like(wide, 0x7FFF)), _like(wide, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, real), _like(real, 2.0**112))
    special = builder.icmp_unsigned(">=", magnitude, _like(wide, 0x7C00 << 13))
    finite = builder.bitcast(scaled, wide)
    full = builder.or_(magnitude, _like(wide, 0x7F800000))
    sign = builder.shl(builder.and_(whole, _like(wide, 0x8000)), _like(wide, 16))
    return builder.bitcast(builder.or_(builder.select(special, full, finite), sign), real)


def narrow(builder: ir.IRBuilder, value: ir.Value, kind: types.Type) -> ir.Value:
    """fp32 (a vector or a scalar) to the stored bits of a kind: round to nearest even, NaN stays NaN."""
    if kind == types.float32:
        return value
    count = value.type.count if isinstance(value.type, ir.VectorType) else 0
    whole, stored_type = (ir.VectorType(t, count) if count else t for t in (I32, I16))
    bits = builder.bitcast(value, whole)
    is_nan = builder.fcmp_unordered("uno", value, value)
    result = (_narrow_bf16 if kind == types.uint16 else _narrow_fp16)(builder, bits, is_nan)
    return builder.trunc(result, stored_type)


def _narrow_bf16(builder: ir.IRBuilder, bits: ir.Value, is_nan: ir.Value) -> ir.Value:
    """fp32 bits to bf16 bits."""
    upper = builder.lshr(bits, _like(bits.type, 16))
    odd = builder.and_(upper, _like(bits.type, 1))
    rounded = builder.lshr(builder.add(builder.add(bits, _like(bits.type, 0x7FFF)), odd), _like(bits.type, 16))
    return builder.select(is_nan, builder.or_(upper, _like(bits.type, 0x40)), rounded)


def _narrow_fp16(builder: ir.IRBuilder, bits: ir.Value, is_nan: ir.Value) -> ir.Value:
    """fp32 bits to fp16 bits, branch-free.

    Normal results round in the integer domain. Subnormal ones add 0.5, whose last mantissa bit weighs exactly one
    fp16 subnormal step (2 ** -24), so that the addition itself rounds to nearest even.
    """

    def like(value: int) -> ir.Constant:
        return _like(bits.type, value)

    real = ir.VectorType(F32, bits.type.count) if isinstance(bits.type, ir.VectorType) else F32
    magnitude = builder.and_(bits, like(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, like(13)), like(1))
    rebias = builder.sub(builder.add(builder.add(magnitude, like(0xFFF)), odd), like(112 << 23))
    normal = builder.lshr(rebias, like(13))
    shifted = builder.fadd(builder.bitcast(magnitude, real), _like(real, 0.5))
    subnormal = builder.sub(builder.bitcast(shifted, bits.type), like(126 << 23))
    small = builder.icmp_unsigned("<", magnitude, like(113 << 23))
    result = builder.select(small, subnormal, normal)
    overflow = builder.icmp_unsigned(">=", magnitude, like(143 << 23))
    result = builder.select(overflow, like(0x7C00), result)
    result = builder.select(is_nan, like(0x7E00), result)
    sign = builder.and_(builder.lshr(bits, like(16)), like(0x8000))
    return builder.or_(result, sign)


def _like(kind: ir.Type, value: float) -> ir.Constant:
    """`value` as a constant of a scalar or vector type."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


# ---- exp -----------------------------------------------------------------------------------------------------------

_LN2_HIGH = 0.693359375  # ten bits: n * _LN2_HIGH is exact
_LN2_LOW = -2.12194440e-4
_EXP_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_ROUND = 12582912.0  # 1.5 * 2 ** 23: adding it leaves the nearest integer in the low mantissa bits


def exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp of every lane within 2 ulp (Cephes' expf), right at -inf, -104, 88, +inf, NaN and down to denormals.

    2 ** n is applied in two halves, so that a denormal result is rounded once and an overflow becomes infinity. No
    float is converted to an integer: a NaN would be undefined there.
    """
    x = builder.select(builder.fcmp_ordered("<", x, constant(-105.0)), constant(-105.0), x)
    x = builder.select(builder.fcmp_ordered(">", x, constant(90.0)), constant(90.0), x)
    shifted = builder.fadd(builder.fmul(x, constant(LOG2_E)), constant(_ROUND))
    n = builder.sub(builder.bitcast(shifted, VI32), integers(0x4B400000))
    whole = builder.fsub(shifted, constant(_ROUND))
    r = fma(builder, whole, constant(-_LN2_HIGH), x)
    r = fma(builder, whole, constant(-_LN2_LOW), r)
    p: ir.Value = constant(_EXP_POLYNOMIAL[0])
    for coefficient in _EXP_POLYNOMIAL[1:]:
        p = fma(builder, p, r, constant(coefficient))
    p = fma(builder, p, builder.fmul(r, r), builder.fadd(r, constant(1.0)))
    half = builder.ashr(n, integers(1))
    for power in (half, builder.sub(n, half)):
        bits = builder.shl(builder.add(power, integers(127)), integers(23))
        p = builder.fmul(p, builder.bitcast(bits, VF32))
    return p


def tanh(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """tanh of every lane through exp(-2|x|); absolute error about 1e-7, which is what a soft-cap needs."""
    bits = builder.bitcast(x, VI32)
    sign = builder.and_(bits, integers(-0x80000000))
    magnitude = builder.bitcast(builder.and_(bits, integers(0x7FFFFFFF)), VF32)
    e = exp(builder, builder.fmul(magnitude, constant(-2.0)))
    t = builder.fdiv(builder.fsub(constant(1.0), e), builder.fadd(constant(1.0), e))
    return builder.bitcast(builder.or_(builder.bitcast(t, VI32), sign), VF32)


# ---- reductions ----------------------------------------------------------------------------------------------------


def fold4(builder: ir.IRBuilder, rows: list[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Horizontal reductions of four vectors as one 4-lane vector, always combined in the same tree.

    Two rounds of interleaving leave [a b c d] in each group of four lanes; two folds combine the groups.
    """

    def combined(a: ir.Value, b: ir.Value, low: list[int], high: list[int]) -> ir.Value:
        return combine(shuffle(builder, a, b, low), shuffle(builder, a, b, high))

    low = [4 * g + i + h for g in range(LANES // 4) for i in (0, 1) for h in (0, LANES)]
    high = [4 * g + i + h for g in range(LANES // 4) for i in (2, 3) for h in (0, LANES)]
    ab, cd = (combined(rows[i], rows[i + 1], low, high) for i in (0, 2))
    low = [4 * g + i for g in range(LANES // 4) for i in (0, 1, LANES, LANES + 1)]
    high = [4 * g + i for g in range(LANES // 4) for i in (2, 3, LANES + 2, LANES + 3)]
    total = combined(ab, cd, low, high)
    width = LANES
    while width > 4:
        width //= 2
        total = combined(total, total, list(range(width)), list(range(width, 2 * width)))
    return total


def maximum(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The greater lane; `a` where either is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)
