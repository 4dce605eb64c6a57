"""What becomes of the sums of a product when they are complete: rounded to bf16, or silu(gate) * up of them.

Sixteen numbers at a time. Rounding is to nearest even; NaN stays NaN, of some bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import types

from paged_core.native import vectors as v
from paged_core.native.elements import emit
from paged_core.native.lanes_bf16 import narrow, widen
from paged_core.native.vectors import EXP2_POLYNOMIAL, F32, I16, I64, LANES, LOG2_E, VF32, VI32, sum_loop

if TYPE_CHECKING:
    from llvmlite import ir

_MOST_POWER = 126.0  # 2 ** 127 and its reciprocal are still normal numbers
_ROUND = 12582912.0  # 1.5 * 2 ** 23: adding it leaves the nearest integer in the low mantissa bits


def exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp of every lane, relative error 2e-7, for |x| < 87; beyond that the last such number. NaN stays NaN."""
    power = builder.fmul(x, v.constant(LOG2_E))
    for bound, too_far in ((_MOST_POWER, ">"), (-_MOST_POWER, "<")):
        power = builder.select(builder.fcmp_ordered(too_far, power, v.constant(bound)), v.constant(bound), power)
    shifted = builder.fadd(power, v.constant(_ROUND))
    rest = builder.fsub(power, builder.fsub(shifted, v.constant(_ROUND)))
    p: ir.Value = v.constant(EXP2_POLYNOMIAL[0])
    for coefficient in EXP2_POLYNOMIAL[1:]:
        p = v.fma(builder, p, rest, v.constant(coefficient))
    exponent = builder.shl(builder.bitcast(shifted, VI32), v.integers(23))  # its low bits are the integer
    return builder.bitcast(builder.add(builder.bitcast(p, VI32), exponent), VF32)


@emit
def store_rounded(typing: Any, sums: Any, out: Any, count: Any) -> Any:
    """out = bf16 of `count` vectors of fp32; addresses."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            first = builder.mul(index, I64(LANES))
            value = v.load(builder, v.address_of(builder, args[0], F32, first), VF32)
            v.store(builder, narrow(builder, value), v.address_of(builder, args[1], I16, first))
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen


@emit
def store_wide(typing: Any, sums: Any, out: Any, count: Any) -> Any:
    """out = the fp32 of `count` vectors rounded to bf16; addresses."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            source, target = (v.address_of(builder, args[i], F32, builder.mul(index, I64(LANES))) for i in range(2))
            v.store(builder, widen(builder, narrow(builder, v.load(builder, source, VF32))), target)
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen


@emit
def store_gated(typing: Any, sums: Any, out: Any, count: Any) -> Any:
    """out = bf16 of silu(gate) * up; sums: `count` times a vector of gate, then one of up; addresses.

    Every intermediate result is rounded to bf16, as separate operators would.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        def rounded(value: ir.Value) -> ir.Value:
            return widen(builder, narrow(builder, value))

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            here = v.address_of(builder, args[0], F32, builder.mul(index, I64(2 * LANES)))
            gate, up = (rounded(v.load(builder, builder.gep(here, [I64(i)]), VF32)) for i in (0, LANES))
            power = exp(builder, builder.fsub(v.constant(-0.0), gate))
            activated = rounded(builder.fdiv(gate, builder.fadd(v.constant(1.0), power)))
            target = v.address_of(builder, args[1], I16, builder.mul(index, I64(LANES)))
            v.store(builder, narrow(builder, builder.fmul(activated, up)), target)
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen
