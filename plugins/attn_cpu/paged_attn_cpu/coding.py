"""Rows of fp32 to codes, as a cache keeps them, and to digits, as they meet codes (quads.py)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from paged_attn_cpu import vectors as v
from paged_attn_cpu.vectors import F32, I64, LANES, VF32, VI32, emit
from paged_core.native.vectors import I8, sum_loop

LEVELS = 255
LEAST_SPREAD = 2.0**-100  # a row that spreads less is one number: its inverse would overflow
LARGEST_QUERY = 127 * 256 + 127  # of 16 bits in two signed digits
TINY = 1e-37  # a unit that is less counts as zero: its inverse would overflow
MAGIC = 2.0**23  # adding it leaves the nearest integer in the low bits, adding half as much again a signed one
MAGIC_BITS = 0x4B400000


def store_bytes(builder: ir.IRBuilder, numbers: ir.Value, target: ir.Value) -> None:
    """The lowest byte of every lane, one after the other."""
    narrow = ir.VectorType(I8, LANES)
    builder.store(builder.trunc(numbers, narrow), builder.bitcast(target, narrow.as_pointer())).align = 1


def _vector(builder: ir.IRBuilder, source: ir.Value, index: ir.Value) -> ir.Value:
    """Vector `index` of a row of fp32."""
    return v.load(builder, v.address_of(builder, source, F32, builder.mul(index, I64(LANES))), VF32)


@emit
def encode_row(typing: Any, source: Any, codes: Any, chunks: Any) -> Any:
    """(step, minimum) of a row of `chunks` * LANES fp32 at `source`, whose codes go to the bytes at `codes`.

    The arithmetic is that of the contract's reference. Both are NaN, the codes anything, if an element is not finite.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target, count = args

        def survey(index: ir.Value, found: list[ir.Value]) -> list[ir.Value]:
            x = _vector(builder, source, index)
            lowest, highest, spoiled = found
            least = builder.select(builder.fcmp_ordered("<", x, lowest), x, lowest)
            return [least, v.maximum(builder, highest, x), builder.fadd(spoiled, builder.fsub(x, x))]

        infinity = float("inf")
        found = sum_loop(builder, count, [v.constant(infinity), v.constant(-infinity), v.constant(0.0)], survey)
        least = v.fold(builder, found[0], lambda a, b: builder.select(builder.fcmp_ordered("<", b, a), b, a))
        most = v.fold(builder, found[1], lambda a, b: v.maximum(builder, a, b))
        least = builder.fadd(least, v.fold(builder, found[2], builder.fadd))
        spread = builder.fsub(most, least)
        is_flat = builder.fcmp_unordered("<", spread, ir.Constant(F32, LEAST_SPREAD))
        quotient = builder.fdiv(ir.Constant(F32, float(LEVELS)), spread)
        factor = v.splat(builder, builder.select(is_flat, ir.Constant(F32, 0.0), quotient))
        start = v.splat(builder, least)

        def encode(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            steps = builder.fmul(builder.fsub(_vector(builder, source, index), start), factor)
            bits = builder.bitcast(builder.fadd(steps, v.constant(MAGIC)), VI32)
            store_bytes(builder, bits, v.address_of(builder, target, I8, builder.mul(index, I64(LANES))))
            return []

        sum_loop(builder, count, [], encode)
        step = builder.fdiv(spread, ir.Constant(F32, float(LEVELS)))
        return context.make_tuple(builder, signature.return_type, [step, least])

    return types.UniTuple(types.float32, 2)(*[types.int64] * 3), codegen


@emit
def digit_row(typing: Any, source: Any, target: Any, chunks: Any) -> Any:
    """A query for `score_codes`: two planes of digits, the scale of their numbers, and their scaled sum.

    source: address of `chunks` * LANES fp32; target: address of as many times 4 bytes.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target, count = args

        def survey(index: ir.Value, found: list[ir.Value]) -> list[ir.Value]:
            x = _vector(builder, source, index)
            magnitude = builder.bitcast(builder.and_(builder.bitcast(x, VI32), v.integers(0x7FFFFFFF)), VF32)
            return [v.maximum(builder, found[0], magnitude), builder.fadd(found[1], builder.fsub(x, x))]

        found = sum_loop(builder, count, [v.constant(0.0), v.constant(0.0)], survey)
        largest = v.fold(builder, found[0], lambda a, b: v.maximum(builder, a, b))
        unit = builder.fmul(largest, ir.Constant(F32, 1 / LARGEST_QUERY))
        is_tiny = builder.fcmp_unordered("<", unit, ir.Constant(F32, TINY))
        inverse = builder.select(is_tiny, ir.Constant(F32, 0.0), builder.fdiv(ir.Constant(F32, 1.0), unit))
        factor = v.splat(builder, inverse)
        num_bytes = builder.mul(count, I64(LANES))
        low_plane = builder.add(target, num_bytes)

        def digits(index: ir.Value, total: list[ir.Value]) -> list[ir.Value]:
            bits = builder.bitcast(
                builder.fadd(builder.fmul(_vector(builder, source, index), factor), v.constant(1.5 * MAGIC)), VI32
            )
            whole = builder.sub(bits, v.integers(MAGIC_BITS))
            high = builder.ashr(builder.add(whole, v.integers(128)), v.integers(8))
            at = builder.mul(index, I64(LANES))
            store_bytes(builder, high, v.address_of(builder, target, I8, at))
            store_bytes(builder, whole, v.address_of(builder, low_plane, I8, at))
            return [builder.add(total[0], whole)]

        total = v.fold(builder, sum_loop(builder, count, [v.integers(0)], digits)[0], builder.add)
        factor = builder.fadd(unit, v.fold(builder, found[1], builder.fadd))
        numbers = v.address_of(builder, builder.add(low_plane, num_bytes), F32)
        builder.store(factor, numbers)
        builder.store(builder.fmul(builder.sitofp(total, F32), factor), builder.gep(numbers, [I64(1)]))
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen
