"""Sixteen 32-bit lanes at a time: the LLVM vector operations that kernels of the core and of plugins are made of.

Everything here emits plain LLVM vector IR, so the same source becomes zmm, two ymm or four NEON registers; what needs a
processor's instruction is called by name (`call`), where the caller has made sure of it. No fast-math flag is set and
every sum has one fixed order: a result depends on its operands alone, which is what makes kernels batch-invariant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = 16
F32 = ir.FloatType()
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VF32 = ir.VectorType(F32, LANES)
VI32 = ir.VectorType(I32, LANES)
VI16 = ir.VectorType(I16, LANES)

LOG2_E = 1.44269504088896341
EXP2_POLYNOMIAL = (1.32647250e-3, 9.67151299e-3, 5.55073358e-2, 2.40222424e-1, 6.93147004e-1, 1.0)
"""2 ** x for |x| <= 1/2, highest power first; relative error 2e-7."""


# ---- constants and memory ------------------------------------------------------------------------------------------


def splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """A vector with `scalar` in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(VI32, [0] * LANES))


def constant(value: float) -> ir.Constant:
    """A vector constant with `value` in every fp32 lane."""
    return ir.Constant(VF32, [ir.Constant(F32, value)] * LANES)


def integers(value: int) -> ir.Constant:
    """A vector constant with `value` in every int32 lane."""
    return ir.Constant(VI32, [value] * LANES)


def address_of(builder: ir.IRBuilder, address: ir.Value, element: ir.Type, index: ir.Value | None = None) -> ir.Value:
    """Pointer to `element` number `index` from an integer address (64-bit arithmetic throughout)."""
    pointer = builder.inttoptr(address, element.as_pointer())
    return pointer if index is None else builder.gep(pointer, [index], inbounds=True)


def load(builder: ir.IRBuilder, pointer: ir.Value, vector: ir.VectorType) -> ir.Value:
    """Load one vector from a pointer to its element type; only the element's alignment is assumed."""
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = element_bytes(vector.element)
    return value


def store(builder: ir.IRBuilder, vector: ir.Value, pointer: ir.Value) -> None:
    """Store one vector to a pointer to its element type."""
    target = builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()))
    target.align = element_bytes(vector.type.element)


def element_bytes(element: ir.Type) -> int:
    """Size of the element types used here."""
    return 4 if element in (F32, I32) else 8 if element == I64 else 2


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """`a * b + c` lane by lane, rounded once where the processor has the instruction (all 64-bit ones since 2013)."""
    fused = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VF32, [VF32, VF32, VF32]), f"llvm.fmuladd.v{LANES}f32"
    )
    return builder.call(fused, [a, b, c])


def prefetch(builder: ir.IRBuilder, pointer: ir.Value, level: int) -> None:
    """Ask for the cache line at `pointer` to come into the first- or second-level cache; 4: to be used once."""
    pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    name = "llvm.prefetch.p0" if "*" not in str(pointer.type) else "llvm.prefetch.p0i8"
    hint = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32]), name
    )
    builder.call(hint, [pointer, I32(0), I32(4 - level), I32(1)])


def call(builder: ir.IRBuilder, name: str, result: ir.Type, operands: list[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic `name`."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)


def shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
    """`lanes` of the two vectors, counted through."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


# ---- loops and reductions ------------------------------------------------------------------------------------------


def literal(value: Any) -> int:
    """The value of a literal argument."""
    if not isinstance(value, types.IntegerLiteral):
        raise RequireLiteralValue("the shape of a micro-kernel is a compile-time constant")
    return int(value.literal_value)


def sum_loop(
    builder: ir.IRBuilder, count: ir.Value, accumulators: list[ir.Value], body: Any, *, may_unroll: bool = False
) -> list[ir.Value]:
    """Run body(index, accumulators) -> accumulators `count` times with the accumulators in phi nodes.

    Most bodies are as wide as registers allow; copies of them cost time to compile and gain none (`may_unroll`).
    """
    start = builder.block
    loop = builder.append_basic_block("loop")
    done = builder.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), loop, done)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    phis = [builder.phi(value.type) for value in accumulators]
    updated = body(index, phis)
    following = builder.add(index, I64(1))
    index.add_incoming(I64(0), start)
    index.add_incoming(following, builder.block)
    again = builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    if not may_unroll:
        again.set_metadata("llvm.loop", _not_unrolled(builder.module))
    tail = builder.block
    builder.position_at_end(done)
    results = []
    for phi, initial, value in zip(phis, accumulators, updated, strict=True):
        phi.add_incoming(initial, start)
        phi.add_incoming(value, tail)
        result = builder.phi(value.type)
        result.add_incoming(initial, start)
        result.add_incoming(value, tail)
        results.append(result)
    return results


def _not_unrolled(module: ir.Module) -> ir.MDValue:
    """What tells LLVM to leave a loop as it is: a node that names itself first, so that it is this loop's alone."""
    disable = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    node = ir.MDValue(module, [disable], name=str(len(module.metadata)))
    node.operands = (node, disable)
    return node


def fold(builder: ir.IRBuilder, vector: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduce one vector to a scalar by halving."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                vector, undefined, ir.Constant(ir.VectorType(I32, width), list(range(start, start + width)))
            )
            for start in (0, width)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, I32(0))
