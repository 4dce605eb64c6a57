"""Rows on their way between element types: converted, rotated, spread over cells. Sixteen elements at a time.

Loops over array elements would do, were it not for what compilers make of them: indices that may be negative become
gathers, and rounding to bf16 is taken one element at a time. So written they cost a third of a prefill of 512 tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types

from paged_attn_cpu import vectors as v
from paged_attn_cpu.vectors import F32, I16, I32, I64, LANES, emit
from paged_core.native.vectors import sum_loop

if TYPE_CHECKING:
    from collections.abc import Callable


def _in_vectors(builder: ir.IRBuilder, count: ir.Value, body: Callable[[ir.Value, int], None]) -> None:
    """body(first element, lanes) for `count` elements: whole vectors, then one by one."""
    whole = builder.lshr(count, I64(4))
    done = builder.mul(whole, I64(LANES))

    def vectors(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        body(builder.mul(index, I64(LANES)), LANES)
        return []

    def scalars(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        body(builder.add(done, index), 1)
        return []

    sum_loop(builder, whole, [], vectors)
    sum_loop(builder, builder.sub(count, done), [], scalars)


def _read(builder: ir.IRBuilder, address: ir.Value, kind: types.Type, index: ir.Value, lanes: int) -> ir.Value:
    """`lanes` elements from number `index` on, in fp32; a scalar where that is one."""
    pointer = v.address_of(builder, address, v.stored(kind), index)
    if lanes == 1:
        return v.widen(builder, builder.load(pointer), kind)
    return v.widen(builder, v.load(builder, pointer, ir.VectorType(pointer.type.pointee, lanes)), kind)


def _write(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, kind: types.Type, index: ir.Value) -> None:
    """fp32 to elements from number `index` on, rounded to nearest even."""
    pointer = v.address_of(builder, address, v.stored(kind), index)
    bits = v.narrow(builder, value, kind)
    if isinstance(bits.type, ir.VectorType):
        v.store(builder, bits, pointer)
    else:
        builder.store(bits, pointer)


def _all_lanes(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    return scalar if lanes == 1 else v.splat(builder, scalar)


@emit
def convert_row(typing: Any, read: Any, written: Any, addresses: Any, count: Any, factor: Any) -> Any:
    """target = source * factor, `count` elements of the types of `read` and `written`; addresses: (source, target)."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (builder.extract_value(args[2], i) for i in range(2))

        def body(index: ir.Value, lanes: int) -> None:
            value = builder.fmul(_read(builder, source, read, index, lanes), _all_lanes(builder, args[4], lanes))
            _write(builder, value, target, written, index)

        def copy(index: ir.Value, lanes: int) -> None:
            element = v.stored(read)
            vector = ir.VectorType(element, lanes)
            value = v.load(builder, v.address_of(builder, source, element, index), vector)
            v.store(builder, value, v.address_of(builder, target, element, index))

        if read != written:
            _in_vectors(builder, args[3], body)
            return context.get_dummy_value()
        with builder.if_else(builder.fcmp_ordered("==", args[4], F32(1.0))) as (same, scaled):
            with same:
                _in_vectors(builder, args[3], copy)
            with scaled:
                _in_vectors(builder, args[3], body)
        return context.get_dummy_value()

    return types.none(read, written, addresses, types.int64, types.float32), codegen


@emit
def rotate_row(typing: Any, read: Any, written: Any, addresses: Any, angles: Any, factor: Any) -> Any:
    """target = rotated source * factor, 2 * half elements of the types of `read` and `written`.

    addresses: (source, target); angles: (address of `half` fp32 cosines, of sines, half). Rotated elements are rounded
    to the source's type: products and sums are as in `x * cos + rotate_half(x) * sin`.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (builder.extract_value(args[2], i) for i in range(2))
        *tables, half = (builder.extract_value(args[3], i) for i in range(3))

        def rotate(index: ir.Value, lanes: int, finish: Callable[[ir.Value, ir.Value], None]) -> None:
            behind = builder.add(index, half)
            x, y = (_read(builder, source, read, place, lanes) for place in (index, behind))
            cos, sin = (_read(builder, address, types.float32, index, lanes) for address in tables)
            finish(builder.fsub(builder.fmul(x, cos), builder.fmul(y, sin)), index)
            finish(builder.fadd(builder.fmul(y, cos), builder.fmul(x, sin)), behind)

        def body(index: ir.Value, lanes: int) -> None:
            def finish(value: ir.Value, place: ir.Value) -> None:
                rounded = v.widen(builder, v.narrow(builder, value, read), read)
                scaled = builder.fmul(rounded, _all_lanes(builder, args[4], lanes))
                _write(builder, scaled, target, written, place)

            rotate(index, lanes, finish)

        def unscaled(index: ir.Value, lanes: int) -> None:
            rotate(index, lanes, lambda value, place: _write(builder, value, target, read, place))

        if read != written:
            _in_vectors(builder, half, body)
            return context.get_dummy_value()
        with builder.if_else(builder.fcmp_ordered("==", args[4], F32(1.0))) as (same, scaled):
            with same:
                _in_vectors(builder, half, unscaled)
            with scaled:
                _in_vectors(builder, half, body)
        return context.get_dummy_value()

    return types.none(read, written, addresses, angles, types.float32), codegen


@emit
def clear_row(typing: Any, kind: Any, target: Any, count: Any) -> Any:
    """Zeros for `count` elements of the type of `kind`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        element = v.stored(kind)

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            builder.store(ir.Constant(element, 0), v.address_of(builder, args[1], element, index))
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(kind, types.int64, types.int64), codegen


def _spread(builder: ir.IRBuilder, addresses: ir.Value, element: ir.Type, count: ir.Value, step: int) -> None:
    """Copy `count` elements, adjacent at the first address, to places `step` elements apart from the second on."""
    source, target = (builder.extract_value(addresses, i) for i in range(2))

    def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        value = builder.load(v.address_of(builder, source, element, index))
        builder.store(value, v.address_of(builder, target, element, builder.mul(index, I64(step))))
        return []

    sum_loop(builder, count, [], body)


@emit
def spread_key(typing: Any, addresses: Any, width: Any) -> Any:
    """A row of `width` 16-bit elements of K to its places in a cell: a pair of columns goes into every line.

    addresses: (row, place of column 0).
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _spread(builder, args[0], I32, builder.lshr(args[1], I64(1)), LANES)
        return context.get_dummy_value()

    return types.none(addresses, types.int64), codegen


@emit
def spread_value(typing: Any, addresses: Any) -> Any:
    """LANES 16-bit elements of V to every other place in a chunk of a cell. addresses: (row, first place)."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _spread(builder, args[0], I16, I64(LANES), 2)
        return context.get_dummy_value()

    return types.none(addresses), codegen


@emit
def list_run(typing: Any, entries: Any, first: Any, step: Any, count: Any, places: Any) -> Any:
    """Write `count` int64 numbers, `first` and what lies `step` apart, to the address `entries`, `places` apart."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        def body(index: ir.Value, number: list[ir.Value]) -> list[ir.Value]:
            builder.store(number[0], v.address_of(builder, args[0], I64, builder.mul(index, args[4])))
            return [builder.add(number[0], args[2])]

        sum_loop(builder, args[3], [args[1]], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 5), codegen
