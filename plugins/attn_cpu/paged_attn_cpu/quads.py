"""Four products of bytes in every lane, added to an int32: what caches of codes are multiplied by.

A code has 8 bits, the factor it meets 16: two digits, `high * 256 + low`, in two words of four bytes each. Sums of both
digits are kept apart until the end (`combined`). All of it is exact: no result depends on the order of sums, and the
instruction of AVX512-VNNI (kind uint8) gives what plain vector operations give (kind int8).
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from paged_attn_cpu import vectors as v
from paged_attn_cpu.vectors import I32, LANES, VI32
from paged_core.native.vectors import I8, call

QUAD = 4  # bytes of a lane
VBYTES = ir.VectorType(I8, QUAD * LANES)

Digits = tuple[ir.Value, ir.Value]
"""What belongs to the high digits and to the low ones."""


def add_products(
    builder: ir.IRBuilder, kind: types.Type, totals: Digits, line: ir.Value, words: Digits, signed: bool
) -> Digits:
    """totals + line . words. line: four codes a lane, <16 x i32>; words: i32 scalars, four digits each.

    signed: codes are signed and digits unsigned; else codes are unsigned and digits signed.
    """
    if kind == types.uint8:
        return (
            _by_instruction(builder, totals[0], line, words[0], signed),
            _by_instruction(builder, totals[1], line, words[1], signed),
        )
    total = totals[1]
    for byte in range(QUAD):
        high, low = (_byte(builder, word, byte, not signed) for word in words)
        factor = builder.add(builder.shl(high, I32(8)), low)
        total = builder.add(total, builder.mul(_byte(builder, line, byte, signed), v.splat(builder, factor)))
    return totals[0], total


def add_all(
    builder: ir.IRBuilder,
    kind: types.Type,
    totals: list[ir.Value],
    factors: tuple[list[Digits], list[ir.Value]],
    signed: bool,
) -> list[ir.Value]:
    """`add_products` of every word with every line; totals: high and low digits in turns, those of a word together."""
    found: list[ir.Value] = []
    for word in factors[0]:
        for line in factors[1]:
            pair = (totals[len(found)], totals[len(found) + 1])
            found += add_products(builder, kind, pair, line, word, signed)
    return found


def combined(builder: ir.IRBuilder, totals: Digits) -> ir.Value:
    """high * 256 + low in every lane."""
    return builder.add(builder.shl(totals[0], v.integers(8)), totals[1])


def _by_instruction(builder: ir.IRBuilder, total: ir.Value, line: ir.Value, word: ir.Value, signed: bool) -> ir.Value:
    codes, digits = builder.bitcast(line, VBYTES), builder.bitcast(v.splat(builder, word), VBYTES)
    factors = [digits, codes] if signed else [codes, digits]  # unsigned bytes first
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", VI32, [total, *factors])


def _byte(builder: ir.IRBuilder, word: ir.Value, byte: int, signed: bool) -> ir.Value:
    """Byte number `byte` of every 32 bits, widened."""
    shift = builder.ashr if signed else builder.lshr
    left, right = 24 - 8 * byte, 24
    if isinstance(word.type, ir.VectorType):
        return shift(builder.shl(word, v.integers(left)), v.integers(right))
    return shift(builder.shl(word, I32(left)), I32(right))
