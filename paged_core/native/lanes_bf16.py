"""Vectors of bf16: sixteen fp32 rounded to them, by instruction where there is one, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.native import vectors as v
from paged_core.native.processor import has_pairs
from paged_core.native.vectors import VF32, VI16, VI32

if TYPE_CHECKING:
    from llvmlite import ir


def narrow(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Sixteen fp32 as bf16, <16 x i16>."""
    if has_pairs():
        return v.call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", VI16, [value])
    bits = builder.bitcast(value, VI32)
    odd = builder.and_(builder.lshr(bits, v.integers(16)), v.integers(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, v.integers(0x7FFF))), v.integers(16))
    spoiled = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(spoiled, v.integers(0x7FC0), rounded), VI16)


def widen(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """<16 x i16> of bf16 as fp32."""
    return builder.bitcast(builder.shl(builder.zext(bits, VI32), v.integers(16)), VF32)
