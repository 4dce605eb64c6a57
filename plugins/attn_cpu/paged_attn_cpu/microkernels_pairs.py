"""The inner loops of attention in pairs of bf16, for processors that multiply those by instruction (`vdpbf16ps`).

    scores[rows, cells * 16 keys]  = q[rows, D] . K                 `score_cells`
    weights, max, sum              = softmax of one row of a tile   `weigh_patch`
    acc[rows, columns]             = acc * correction + weights . V `add_cells`

K and V come in cells of 16 keys (kernels_cells.py), whose lines are operands of the instruction as they are: a line of
K holds one pair of columns of 16 keys, a line of V one pair of keys in 16 columns. No sum crosses lanes, and none
depends on what is in other lanes: a score is added up pair by pair of columns, an output pair by pair of keys.
A product of two bf16 numbers is exact; the instruction adds two of them to an fp32 sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import types

from paged_attn_cpu import pairs
from paged_attn_cpu import vectors as v
from paged_attn_cpu.microkernels import CACHE_LINE, STRIDE, TILE, seen_lanes
from paged_attn_cpu.vectors import F32, I32, I64, LANES, VF32, VI32, emit
from paged_core.native.vectors import I8, literal, sum_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

CELL = LANES  # keys of a cell
ROWS_A_FOLD = 4
LINES = CELL // 2  # lines of a cell of V for every 16 columns, one for a pair of keys
MOST_ROWS = 6  # of a patch: six rows by four vectors, four operands and the rest of 32 registers for six broadcasts
UNCORRECTED = TILE + 1  # element of a row of scores that holds 1, beside the row's correction in element TILE


def _broadcast(builder: ir.IRBuilder, row: ir.Value, index: ir.Value) -> ir.Value:
    return v.splat(builder, builder.load(builder.gep(row, [index])))


@emit
def score_cells(typing: Any, shape: Any, queries: Any, lists: Any, width: Any, scores: Any) -> Any:
    """Scores of a patch; `shape` is the literal 8 * rows + cells.

    queries: address of rows of `width` bf16; lists: addresses of int64 addresses, of the cells of K and of cells that
    are asked for meanwhile; scores: address of fp32 rows, STRIDE apart.
    """
    num_rows, num_cells = divmod(literal(shape), 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, q_address, lists_value, row_width, out_address = args
        half = builder.lshr(row_width, I64(1))
        here, ahead = (
            [
                v.address_of(builder, builder.load(v.address_of(builder, address, I64, I64(i))), I8)
                for i in range(num_cells)
            ]
            for address in (builder.extract_value(lists_value, i) for i in range(2))
        )
        q_rows = [v.address_of(builder, q_address, I32, builder.mul(half, I64(i))) for i in range(num_rows)]

        def body(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(index, I64(CACHE_LINE))
            for cell in ahead:
                v.prefetch(builder, builder.gep(cell, [offset]), 1)
            keys = [
                v.load(builder, builder.bitcast(builder.gep(cell, [offset]), I32.as_pointer()), VI32) for cell in here
            ]
            queries = [_broadcast(builder, row, index) for row in q_rows]
            products = [(query, key) for query in queries for key in keys]
            return [pairs.add_products(builder, total, *pair) for pair, total in zip(products, totals, strict=True)]

        totals = sum_loop(builder, half, [v.constant(0.0)] * (num_rows * num_cells), body)
        for number, total in enumerate(totals):
            row, cell = divmod(number, num_cells)
            v.store(builder, total, v.address_of(builder, out_address, F32, I64(row * STRIDE + cell * CELL)))
        return context.get_dummy_value()

    return types.none(shape, types.int64, lists, types.int64, types.int64), codegen


@emit
def add_cells(
    typing: Any, shape: Any, weights: Any, lists: Any, keys: Any, column: Any, acc: Any, width: Any, correction: Any
) -> Any:
    """acc = acc * correction + weights . V for a patch; `shape` is the literal 8 * rows + vectors of columns.

    weights: address of rows STRIDE * 4 bytes apart, of bf16, with the fp32 correction in element `correction`; lists:
    addresses of int64 addresses, of the cells of V that hold `keys` keys and of cells that are asked for meanwhile;
    column: first column of the patch; acc: address of fp32 rows of `width`. What lies beside the last of an odd number
    of keys does not count, be it NaN.
    """
    patch = divmod(literal(shape), 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, w_address, lists_value, num_keys, first, acc_address, row_width, corrected = args
        w_rows = [v.address_of(builder, w_address, I32, I64(i * STRIDE)) for i in range(patch[0])]
        start = v.address_of(builder, acc_address, F32, first)
        targets = [
            builder.gep(start, [builder.add(builder.mul(row_width, I64(i)), I64(chunk * LANES))])
            for i in range(patch[0])
            for chunk in range(patch[1])
        ]
        factors = [v.splat(builder, builder.bitcast(builder.load(builder.gep(r, [corrected])), F32)) for r in w_rows]
        initial = [
            builder.fmul(v.load(builder, target, VF32), factors[number // patch[1]])
            for number, target in enumerate(targets)
        ]

        def add(pair: ir.Value, totals: list[ir.Value], seen: Callable[[ir.Value], ir.Value]) -> list[ir.Value]:
            columns = [seen(line) for line in _pair_of_keys(builder, lists_value, pair, first, patch[1])]
            values = [_broadcast(builder, row, pair) for row in w_rows]
            products = [(weight, column) for weight in values for column in columns]
            return [pairs.add_products(builder, total, *both) for both, total in zip(products, totals, strict=True)]

        whole, odd = builder.lshr(num_keys, I64(1)), builder.and_(num_keys, I64(1))
        totals = sum_loop(builder, whole, initial, lambda index, totals: add(index, totals, lambda line: line))
        lower = v.integers(0xFFFF)
        totals = sum_loop(builder, odd, totals, lambda _, totals: add(whole, totals, lambda x: builder.and_(x, lower)))
        for target, total in zip(targets, totals, strict=True):
            v.store(builder, total, target)
        return context.get_dummy_value()

    return types.none(shape, types.int64, lists, *[types.int64] * 5), codegen


def _pair_of_keys(
    builder: ir.IRBuilder, lists: ir.Value, pair: ir.Value, column: ir.Value, num_chunks: int
) -> list[ir.Value]:
    """Lines of V of one pair of keys, from the chunk of `column` on; the same ones of cells ahead are asked for."""
    cell = builder.lshr(pair, I64(3))
    start = builder.mul(column, I64(2 * CELL))  # bytes of a cell before the chunk
    offset = builder.add(start, builder.mul(builder.and_(pair, I64(LINES - 1)), I64(CACHE_LINE)))
    entries = [v.address_of(builder, builder.extract_value(lists, i), I64, cell) for i in range(2)]
    here, ahead = (builder.gep(v.address_of(builder, builder.load(entry), I8), [offset]) for entry in entries)
    lines = []
    for chunk in range(num_chunks):
        step = [I64(chunk * LINES * CACHE_LINE)]
        v.prefetch(builder, builder.gep(ahead, step), 1)
        lines.append(v.load(builder, builder.bitcast(builder.gep(here, step), I32.as_pointer()), VI32))
    return lines


@emit
def hide_keys(typing: Any, scores: Any, low: Any, high: Any) -> Any:
    """Scores of a row's tile become -inf but for keys low <= j <= high, whatever they were."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        hidden = v.constant(float("-inf"))
        for number, seen in enumerate(seen_lanes(builder, *args[1:])):
            source = v.address_of(builder, args[0], F32, I64(number * LANES))
            v.store(builder, builder.select(seen, v.load(builder, source, VF32), hidden), source)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen


def fold_rows(
    builder: ir.IRBuilder, rows: list[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """One lane a row (up to eight): its vector reduced, in the same tree however many rows there are."""
    padded = rows + rows[-1:] * (2 * ROWS_A_FOLD - len(rows))
    low = v.fold4(builder, padded[:ROWS_A_FOLD], combine)
    high = v.fold4(builder, padded[ROWS_A_FOLD:], combine) if len(rows) > ROWS_A_FOLD else low
    return v.shuffle(builder, low, high, [i % (2 * ROWS_A_FOLD) for i in range(LANES)])


def soften_rows(builder: ir.IRBuilder, num_rows: int, args: Any, exps: tuple[Any, Any], take: Any) -> None:
    """One online-softmax step of `num_rows` rows: their states move on, and take(row, weights) is called for each.

    args: address of rows of TILE fp32 scores, STRIDE apart, whose correction goes behind them; address of each row's
    (maximum, sum) in fp32; a positive number that is yet to multiply the scores. exps: how to take e and 2 to a power.
    A row that has seen no key keeps maximum -inf and sum 0. A row is one long chain of instructions, each of which
    waits for the one before: several rows at once keep the processor busy.
    """
    s_address, state_address, factor = args
    every = range(num_rows)
    sources = [
        [v.address_of(builder, s_address, F32, I64(r * STRIDE + c)) for c in range(0, TILE, LANES)] for r in every
    ]

    def maximum(a: ir.Value, b: ir.Value) -> ir.Value:
        return v.maximum(builder, a, b)

    tops = []
    for row in sources:
        values = [v.load(builder, source, VF32) for source in row]
        tops.append(maximum(maximum(*values[:2]), maximum(*values[2:])))
    top = builder.fmul(fold_rows(builder, tops, maximum), v.splat(builder, factor))
    state = v.load(builder, v.address_of(builder, state_address, F32), VF32)  # more than is ours; ours is stored
    old, total = (v.shuffle(builder, state, state, [i * 2 % LANES + part for i in range(LANES)]) for part in range(2))
    new = maximum(old, top)
    unseen = builder.fcmp_ordered("==", new, v.constant(float("-inf")))
    origin = builder.select(unseen, v.constant(0.0), new)
    corrections = exps[0](builder, builder.fsub(old, origin))
    log2_e = v.constant(pairs.LOG2_E)
    negative = builder.fneg(builder.fmul(origin, log2_e))
    steps = builder.fmul(v.splat(builder, factor), log2_e)
    sums = []
    for r in every:
        start = v.shuffle(builder, negative, negative, [r] * LANES)
        powers = [v.fma(builder, v.load(builder, source, VF32), steps, start) for source in sources[r]]
        weights = [exps[1](builder, power) for power in powers]
        take(r, weights)
        sums.append(builder.fadd(builder.fadd(*weights[:2]), builder.fadd(*weights[2:])))
        correction = builder.extract_element(corrections, I32(r))
        builder.store(correction, v.address_of(builder, s_address, F32, I64(r * STRIDE + TILE)))
    total = builder.fadd(builder.fmul(total, corrections), fold_rows(builder, sums, builder.fadd))
    kept = v.shuffle(builder, new, total, [i // 2 + i % 2 * LANES for i in range(2 * num_rows)])
    v.store(builder, kept, v.address_of(builder, state_address, F32))


@emit
def weigh_patch(typing: Any, rows: Any, scores: Any, states: Any, scale: Any) -> Any:
    """`soften_rows` of `rows` (literal) rows: scores become bf16 weights, their sum is that of the unrounded ones."""
    num_rows = literal(rows)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        def take(row: int, weights: list[ir.Value]) -> None:
            for i in (0, 2):
                target = v.address_of(builder, args[1], F32, I64(row * STRIDE + i // 2 * LANES))
                v.store(builder, pairs.narrow(builder, *weights[i : i + 2]), target)

        soften_rows(builder, num_rows, args[1:], (pairs.exp, pairs.exp2), take)
        return context.get_dummy_value()

    return types.none(rows, types.int64, types.int64, types.float32), codegen
