"""Micro-kernels of matrix products: a few rows of inputs times 32 or 64 columns of a packed weight, in registers.

A weight [out, in] is packed in panels of PANEL outputs; the inputs of one output lie in lanes of 32 bits:

    bf16   [panel][in / 2][PANEL] pairs of inputs      `multiply_pairs`, vdpbf16ps
    int8   [panel][in / 4][PANEL] quads of inputs      `multiply_quads`, vpdpbusd; a group of inputs begins with PANEL
                                                       int32, what unsigned inputs (128 + x) add up to too much

Sums are built input by input in one order: a row's result depends neither on how many rows go together nor on how the
work is cut. Nothing here may be emitted unless the processor has the instruction (`native/processor.py`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from paged_core.native import vectors as v
from paged_core.native.elements import emit
from paged_core.native.lanes_bf16 import narrow
from paged_core.native.matrix import PANEL
from paged_core.native.vectors import F32, I8, I16, I32, I64, LANES, VF32, VI32, literal, sum_loop

assert PANEL == 2 * LANES
MOST_ROWS = 6  # that go together: 24 accumulators, 4 vectors of weights
FEW_ROWS = 3  # below that, memory is the limit: weights are read once and not kept
STREAM_AHEAD = 384  # pairs ahead of their use that weights are asked for, then; measured
COLUMNS = 2 * PANEL  # of one row of sums


def shape_of(shape: Any) -> tuple[int, int]:
    """Rows and vectors of columns that the literal 8 * rows + vectors names."""
    return divmod(literal(shape), 8)


def _rows(builder: ir.IRBuilder, place: ir.Value, element: ir.Type, count: int) -> list[ir.Value]:
    """Pointers to `count` rows; place: (address of the first, bytes between rows)."""
    address, stride = (builder.extract_value(place, i) for i in range(2))
    return [v.address_of(builder, builder.add(address, builder.mul(stride, I64(i))), element) for i in range(count)]


def _weights(builder: ir.IRBuilder, panels: list[ir.Value], index: ir.Value) -> list[ir.Value]:
    """The vectors of step `index` of every panel."""
    first = builder.mul(index, I64(PANEL))
    return [
        v.load(builder, builder.gep(panel, [builder.add(first, I64(half))]), VI32)
        for panel in panels
        for half in (0, LANES)
    ]


def _product(
    builder: ir.IRBuilder, operands: tuple[list[ir.Value], list[ir.Value], ir.Value, ir.Value], sums: list[ir.Value],
    instruction: Any,
) -> list[ir.Value]:  # fmt: skip
    """sums + rows . panels. operands: rows, panels, number of steps, an address to prefetch from, a line a step."""
    rows, panels, steps, ahead = operands

    def body(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        weights = _weights(builder, panels, index)
        if len(rows) >= FEW_ROWS:
            line = builder.add(ahead, builder.mul(index, I64(64)))
            v.prefetch(builder, v.address_of(builder, line, I8), 2)
        elif instruction is _add_pairs:  # in int8 the processor's own prefetching does better
            _stream(builder, panels, index)
        inputs = [v.splat(builder, builder.load(builder.gep(row, [index]))) for row in rows]
        products = [(x, weight) for x in inputs for weight in weights]
        return [instruction(builder, total, *product) for total, product in zip(totals, products, strict=True)]

    return sum_loop(builder, steps, sums, body, may_unroll=len(rows) < FEW_ROWS)


def _stream(builder: ir.IRBuilder, panels: list[ir.Value], index: ir.Value) -> None:
    """Ask for weights of a later step, without making room for them in the outer caches."""
    for panel in panels:
        for half in (0, LANES):
            element = builder.add(builder.mul(index, I64(PANEL)), I64(half + STREAM_AHEAD))
            v.prefetch(builder, builder.gep(panel, [element]), 4)


def _add_pairs(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, weight: ir.Value) -> ir.Value:
    return v.call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF32, [total, weight, x])


def _add_quads(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, weight: ir.Value) -> ir.Value:
    bytes_of = ir.VectorType(I8, 4 * LANES)
    operands = [total, builder.bitcast(x, bytes_of), builder.bitcast(weight, bytes_of)]
    return v.call(builder, "llvm.x86.avx512.vpdpbusd.512", VI32, operands)


def _sums(builder: ir.IRBuilder, address: ir.Value, rows: int, chunks: int) -> list[ir.Value]:
    """Pointers to the vectors of sums of a patch: rows of COLUMNS fp32."""
    first = v.address_of(builder, address, F32)
    return [builder.gep(first, [I64(r * COLUMNS + c * LANES)]) for r in range(rows) for c in range(chunks)]


def _loaded(builder: ir.IRBuilder, targets: list[ir.Value], is_first: ir.Value) -> list[ir.Value]:
    """The sums so far: zeros in the first segment, whatever is in memory."""
    start = builder.block
    with builder.if_then(builder.icmp_signed("==", is_first, I64(0))):
        loaded = [v.load(builder, target, VF32) for target in targets]
        there = builder.block
    sums = []
    for value in loaded:
        phi = builder.phi(VF32)
        phi.add_incoming(v.constant(0.0), start)
        phi.add_incoming(value, there)
        sums.append(phi)
    return sums


def _put(
    builder: ir.IRBuilder, totals: list[ir.Value], sums: list[ir.Value], place: tuple[ir.Value, int], scaled: Any
) -> None:
    """Totals to the sums, or scaled and rounded to the outputs; place: (out, its address 0 = to the sums; rows)."""
    out, rows = place
    chunks = len(totals) // rows
    with builder.if_else(builder.icmp_signed("==", builder.extract_value(out, 0), I64(0))) as (keep, give):
        with keep:
            for total, target in zip(totals, sums, strict=True):
                v.store(builder, total, target)
        with give:
            outputs = _rows(builder, out, I16, rows)
            for i, total in enumerate(totals):
                target = builder.gep(outputs[i // chunks], [I64(i % chunks * LANES)])
                v.store(builder, narrow(builder, scaled(total, i % chunks)), target)


def _scaled_by(builder: ir.IRBuilder, scales: ir.Value) -> Any:
    """A function of a vector of sums and the number of its columns; scales: address of the outputs' fp32 scales."""

    def scaled(total: ir.Value, chunk: int) -> ir.Value:
        return builder.fmul(total, v.load(builder, v.address_of(builder, scales, F32, I64(chunk * LANES)), VF32))

    return scaled


@emit
def multiply_pairs(
    typing: Any, shape: Any, inputs: Any, weights: Any, steps: Any, sums: Any, out: Any, ahead: Any
) -> Any:
    """sums += inputs . weights for a patch; `shape`: the literal 8 * rows + vectors of columns (2 or 4).

    inputs: (address of rows of pairs of bf16, bytes between rows); weights: (address of a panel at its first step,
    bytes between panels); steps: pairs of inputs; sums: (address of rows of COLUMNS fp32, 1 = these are the first
    inputs, there are no sums yet); out: (address of where they go, rounded to bf16, instead of to the sums; 0 = they do
    not, bytes between rows); ahead: address of memory that is prefetched meanwhile, 64 bytes a step.
    """
    rows, chunks = shape_of(shape)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, inputs, weights, steps, sums, out, ahead = args
        x = _rows(builder, inputs, I32, rows)
        panels = _rows(builder, weights, I32, chunks // 2)
        targets = _sums(builder, builder.extract_value(sums, 0), rows, chunks)
        initial = _loaded(builder, targets, builder.extract_value(sums, 1))
        totals = _product(builder, (x, panels, steps, ahead), initial, _add_pairs)
        _put(builder, totals, targets, (out, rows), lambda total, chunk: total)
        return context.get_dummy_value()

    return types.none(shape, inputs, weights, types.int64, sums, out, types.int64), codegen


@emit
def multiply_quads(
    typing: Any, shape: Any, inputs: Any, scales: Any, weights: Any, groups: Any, sums: Any, out: Any, ahead: Any
) -> Any:
    """sums += scale of the row and group * (inputs . weights), group by group; as `multiply_pairs`, but

    inputs: rows of unsigned bytes, 128 + x; scales: (address of the first row's first fp32 scale, bytes between rows);
    weights: addresses where a group begins, with its PANEL int32; groups: (number, quads of inputs of each); out: with
    the address of the outputs' scales as a third; ahead: (address, bytes between groups) of memory to prefetch.
    Integers and sums both stay in registers, so a patch is two vectors wide.
    """
    rows, chunks = shape_of(shape)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, inputs, scales, weights, groups, sums, out, ahead = args
        x = _rows(builder, inputs, I32, rows)
        factors = _rows(builder, scales, F32, rows)
        panels = _rows(builder, weights, I32, chunks // 2)
        number, steps = (builder.extract_value(groups, i) for i in range(2))
        line, stride = (builder.extract_value(ahead, i) for i in range(2))
        size = builder.mul(builder.add(steps, I64(1)), I64(PANEL))  # of a group, in int32

        def body(group: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            begin = [builder.gep(panel, [builder.mul(group, size)]) for panel in panels]
            quads = [builder.gep(panel, [I64(PANEL)]) for panel in begin]
            here = [builder.gep(row, [builder.mul(group, steps)]) for row in x]
            there = builder.add(line, builder.mul(group, stride))
            excess = _weights(builder, begin, I64(0))
            exact = _product(builder, (here, quads, steps, there), excess * rows, _add_quads)
            scale = [v.splat(builder, builder.load(builder.gep(factor, [group]))) for factor in factors]
            return [
                v.fma(builder, builder.sitofp(exact[i], VF32), scale[i // chunks], total)
                for i, total in enumerate(totals)
            ]

        targets = _sums(builder, builder.extract_value(sums, 0), rows, chunks)
        initial = _loaded(builder, targets, builder.extract_value(sums, 1))
        totals = sum_loop(builder, number, initial, body)
        _put(builder, totals, targets, (out, rows), _scaled_by(builder, builder.extract_value(out, 2)))
        return context.get_dummy_value()

    return types.none(shape, inputs, scales, weights, groups, sums, out, ahead), codegen
