"""The inner loops of attention over a cache of codes (kernels_codes.py says how those lie in memory).

    scores[rows, cells * 16 keys]  = q . K                  `score_codes`: step * (digits . codes) + minimum * sum of q
    weights, max, sum              = softmax of a tile      `weigh_codes`: digits of weight * step
    sums[rows, columns]            = digits . V             `add_codes`
    acc                            = acc * correction + sums * scale + middles     `settle_codes`

Products are of integers and exact (quads.py). A query has 16 bits of its row's largest element; a weight, with the step
of its value's codes in it, 16 bits of the largest of its row and tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import types

from paged_attn_cpu import pairs, quads
from paged_attn_cpu import vectors as v
from paged_attn_cpu.coding import MAGIC, TINY, store_bytes
from paged_attn_cpu.microkernels import CACHE_LINE, STRIDE, TILE
from paged_attn_cpu.microkernels_pairs import CELL, fold_rows, soften_rows
from paged_attn_cpu.vectors import F32, I32, I64, LANES, VF32, VI32, emit
from paged_core.native.vectors import I8, literal, sum_loop

if TYPE_CHECKING:
    from llvmlite import ir

QUADS = CELL // quads.QUAD  # lines of a cell of V for every 16 columns, one for four keys
SCALING = 4  # lines behind a cell of K: step and minimum of its keys' K, step and middle of their V
LARGEST_WEIGHT = 255 * 256  # in two unsigned ones, with room for a rounding
WEIGHT_SCALE, MIDDLE = TILE + 1, TILE + 2  # elements of a row of scores, behind its correction
DIGITS = TILE  # bytes of a row's high digits, before its low ones


def _line(builder: ir.IRBuilder, cell: ir.Value, offset: ir.Value, kind: ir.VectorType) -> ir.Value:
    """The vector `offset` bytes behind a pointer to bytes."""
    return v.load(builder, builder.bitcast(builder.gep(cell, [offset]), kind.element.as_pointer()), kind)


def _cells(builder: ir.IRBuilder, address: ir.Value, count: int) -> list[ir.Value]:
    """The cells whose addresses are at `address`."""
    return [v.address_of(builder, builder.load(v.address_of(builder, address, I64, I64(i))), I8) for i in range(count)]


def _words(builder: ir.IRBuilder, row: ir.Value, index: ir.Value, apart: ir.Value) -> quads.Digits:
    """Word `index` of a row's high digits, and of the low ones `apart` bytes further on."""
    offset = builder.mul(index, I64(quads.QUAD))
    high, low = (
        builder.load(builder.bitcast(builder.gep(row, [at]), I32.as_pointer()), align=1)
        for at in (offset, builder.add(offset, apart))
    )
    return high, low


def _number(builder: ir.IRBuilder, row: ir.Value, offset: ir.Value) -> ir.Value:
    """The fp32 `offset` bytes behind a pointer to bytes, in all lanes."""
    return v.splat(builder, builder.load(builder.bitcast(builder.gep(row, [offset]), F32.as_pointer())))


@emit
def score_codes(typing: Any, shape: Any, kind: Any, queries: Any, lists: Any, width: Any, scores: Any) -> Any:
    """Scores of a patch; `shape` is the literal 8 * rows + cells.

    queries: address of rows of 4 * `width` bytes, written by `digit_row`; lists: addresses of int64 addresses, of the
    cells of K and of cells that are asked for meanwhile; scores: address of fp32 rows, STRIDE apart.
    """
    num_rows, num_cells = divmod(literal(shape), 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, _, q_address, lists_value, row_width, out_address = args
        here, ahead = (_cells(builder, builder.extract_value(lists_value, i), num_cells) for i in range(2))
        row_bytes = builder.shl(row_width, I64(2))
        rows = [
            v.address_of(builder, builder.add(q_address, builder.mul(row_bytes, I64(i))), I8) for i in range(num_rows)
        ]

        def body(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(index, I64(CACHE_LINE))
            for cell in ahead:
                v.prefetch(builder, builder.gep(cell, [offset]), 1)
            lines = [_line(builder, cell, offset, VI32) for cell in here]
            words = [_words(builder, row, index, row_width) for row in rows]
            return quads.add_all(builder, kind, totals, (words, lines), False)

        steps = builder.lshr(row_width, I64(2))
        totals = sum_loop(builder, steps, [v.integers(0)] * (2 * num_rows * num_cells), body)
        scaling = builder.mul(steps, I64(CACHE_LINE))
        for cell in ahead:
            for i in range(SCALING):
                v.prefetch(builder, builder.gep(cell, [builder.add(scaling, I64(i * CACHE_LINE))]), 1)
        after = builder.shl(row_width, I64(1))
        numbers = [[_number(builder, row, builder.add(after, I64(i))) for i in (0, 4)] for row in rows]
        for i, cell in enumerate(here):
            step, least = (_line(builder, cell, builder.add(scaling, I64(at)), VF32) for at in (0, CACHE_LINE))
            for j, (scale, total) in enumerate(numbers):
                number = 2 * (j * num_cells + i)
                whole = builder.sitofp(quads.combined(builder, (totals[number], totals[number + 1])), VF32)
                score = v.fma(builder, builder.fmul(whole, step), scale, builder.fmul(least, total))
                v.store(builder, score, v.address_of(builder, out_address, F32, I64(j * STRIDE + i * CELL)))
        return context.get_dummy_value()

    return types.none(shape, kind, types.int64, lists, types.int64, types.int64), codegen


@emit
def add_codes(typing: Any, shape: Any, kind: Any, weights: Any, lists: Any, count: Any, column: Any, place: Any) -> Any:
    """sums = digits . codes of V for a patch; `shape` is the literal 8 * rows + vectors of columns.

    weights: address of rows STRIDE * 4 bytes apart, of digits; lists: addresses of int64 addresses, of the cells of V
    that hold `count` times four keys and of cells that are asked for meanwhile; column: first of the patch; place:
    (address of int32 rows of sums, their width). Keys without weight may hold any codes.
    """
    num_rows, num_chunks = divmod(literal(shape), 8)
    every = [divmod(number, num_chunks) for number in range(num_rows * num_chunks)]

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, _, w_address, lists_value, num_quads, first, sums = args
        rows = [v.address_of(builder, builder.add(w_address, I64(i * STRIDE * 4)), I8) for i in range(num_rows)]
        start = v.address_of(builder, builder.extract_value(sums, 0), I32, first)
        width = builder.extract_value(sums, 1)
        targets = [
            builder.gep(start, [builder.add(builder.mul(width, I64(row)), I64(chunk * LANES))]) for row, chunk in every
        ]

        def body(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            lines = _quad_of_keys(builder, lists_value, index, first, num_chunks)
            words = [_words(builder, row, index, I64(DIGITS)) for row in rows]
            return quads.add_all(builder, kind, totals, (words, lines), True)

        totals = sum_loop(builder, num_quads, [v.integers(0)] * (2 * len(every)), body)
        for number, target in enumerate(targets):
            v.store(builder, quads.combined(builder, (totals[2 * number], totals[2 * number + 1])), target)
        return context.get_dummy_value()

    return types.none(shape, kind, types.int64, lists, types.int64, types.int64, place), codegen


def _quad_of_keys(
    builder: ir.IRBuilder, lists: ir.Value, quad: ir.Value, column: ir.Value, num_chunks: int
) -> list[ir.Value]:
    """Lines of V of four keys, from the chunk of `column` on; the same ones of cells ahead are asked for."""
    cell = builder.lshr(quad, I64(2))
    start = builder.mul(column, I64(CELL))  # bytes of a cell before the chunk
    offset = builder.add(start, builder.mul(builder.and_(quad, I64(QUADS - 1)), I64(CACHE_LINE)))
    entries = [v.address_of(builder, builder.extract_value(lists, i), I64, cell) for i in range(2)]
    here, ahead = (v.address_of(builder, builder.load(entry), I8) for entry in entries)
    places = [builder.add(offset, I64(chunk * QUADS * CACHE_LINE)) for chunk in range(num_chunks)]
    for place in places:
        v.prefetch(builder, builder.gep(ahead, [place]), 1)
    return [_line(builder, here, place, VI32) for place in places]


@emit
def settle_codes(typing: Any, weights: Any, sums: Any, acc: Any, width: Any) -> Any:
    """acc = acc * correction + sums * scale + middles for a row of `width`, the numbers as `weigh_codes` left them."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        w_address, sums_address, acc_address, row_width = args
        row = v.address_of(builder, w_address, I8)
        correction, scale, middle = (_number(builder, row, I64(4 * at)) for at in (TILE, WEIGHT_SCALE, MIDDLE))

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            at = builder.mul(index, I64(LANES))
            target = v.address_of(builder, acc_address, F32, at)
            whole = builder.sitofp(v.load(builder, v.address_of(builder, sums_address, I32, at), VI32), VF32)
            kept = v.fma(builder, v.load(builder, target, VF32), correction, middle)
            v.store(builder, v.fma(builder, whole, scale, kept), target)
            return []

        sum_loop(builder, builder.lshr(row_width, I64(4)), [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 4), codegen


@emit
def weigh_codes(typing: Any, rows: Any, kind: Any, scores: Any, states: Any, scale: Any, cells: Any, width: Any) -> Any:
    """`soften_rows` of `rows` (literal) rows of one KV head, with digits of weight * step of V as the weights.

    cells: (address of the addresses of the tile's cells of K, number of the last one).
    """
    num_rows = literal(rows)
    exps = (pairs.exp, pairs.exp2) if kind == types.uint8 else (v.exp, _exp2)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, _, s_address, state_address, factor, cells, width = args
        numbers = _numbers_of_values(builder, cells, width)
        rows: list[tuple[list[ir.Value], ir.Value]] = []  # products with the steps, lanes of the sum with the middles

        def take(_: int, weights: list[ir.Value]) -> None:
            zero = v.constant(0.0)
            counts = [
                builder.fcmp_unordered("!=", weight, zero) for weight in weights
            ]  # where not, there may be no key
            products, middles = (
                [
                    builder.select(seen, builder.fmul(weight, line), zero)
                    for seen, weight, line in zip(counts, weights, lines, strict=True)
                ]
                for lines in numbers
            )
            rows.append((products, builder.fadd(builder.fadd(*middles[:2]), builder.fadd(*middles[2:]))))

        soften_rows(builder, num_rows, (s_address, state_address, factor), exps, take)
        _store_digits(builder, s_address, rows)
        return context.get_dummy_value()

    return types.none(rows, kind, types.int64, types.int64, types.float32, cells, types.int64), codegen


def _exp2(builder: ir.IRBuilder, power: ir.Value) -> ir.Value:
    return v.exp(builder, builder.fmul(power, v.constant(1 / pairs.LOG2_E)))


def _numbers_of_values(builder: ir.IRBuilder, cells: ir.Value, width: ir.Value) -> list[list[ir.Value]]:
    """Step and middle of V of a tile's keys, four vectors each; behind the last cell they are those of that one."""
    address, last = (builder.extract_value(cells, i) for i in range(2))
    found: list[list[ir.Value]] = [[], []]
    for number in range(TILE // CELL):
        index = builder.select(builder.icmp_signed("<", I64(number), last), I64(number), last)
        cell = v.address_of(builder, builder.load(v.address_of(builder, address, I64, index)), I8)
        for i, line in enumerate((2, 3)):
            place = builder.add(builder.mul(width, I64(CELL)), I64(line * CACHE_LINE))
            found[i].append(_line(builder, cell, place, VF32))
    return found


def _store_digits(builder: ir.IRBuilder, scores: ir.Value, rows: list[tuple[list[ir.Value], ir.Value]]) -> None:
    """Products as multiples of the row's largest / LARGEST_WEIGHT in two digits; and what they are multiplied by."""

    def maximum(a: ir.Value, b: ir.Value) -> ir.Value:
        return v.maximum(builder, a, b)

    tops = [maximum(maximum(*products[:2]), maximum(*products[2:])) for products, _ in rows]
    scales = builder.fmul(fold_rows(builder, tops, maximum), v.constant(1 / LARGEST_WEIGHT))
    middles = fold_rows(builder, [middle for _, middle in rows], builder.fadd)
    is_tiny = builder.fcmp_unordered("<", scales, v.constant(TINY))  # NaN too: the row's sum is NaN then as well
    inverses = builder.select(is_tiny, v.constant(0.0), builder.fdiv(v.constant(1.0), scales))
    for r, (products, _) in enumerate(rows):
        factor = v.shuffle(builder, inverses, inverses, [r] * LANES)
        for number, product in enumerate(products):
            bits = builder.bitcast(builder.fadd(builder.fmul(product, factor), v.constant(MAGIC)), VI32)
            for digit, place in ((builder.lshr(bits, v.integers(8)), 0), (bits, DIGITS)):
                target = v.address_of(builder, scores, I8, I64(r * STRIDE * 4 + place + number * CELL))
                store_bytes(builder, digit, target)
        for vector, place in ((scales, WEIGHT_SCALE), (middles, MIDDLE)):
            number = builder.extract_element(vector, I32(r))
            builder.store(number, v.address_of(builder, scores, F32, I64(r * STRIDE + place)))
