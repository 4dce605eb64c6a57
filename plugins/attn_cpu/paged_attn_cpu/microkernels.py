"""The three inner loops of attention, emitted with their accumulators in registers.

    scores[rows, 4 keys]  = q[rows, D] . K[4 keys, D]           `dots`
    weights, max, sum     = softmax of one row of a tile        `softmax_row`
    acc[rows, columns]    = acc * correction + weights . V      `accumulate`

Rows are (query token, head of the group) pairs that share one KV head, so each element of K and V is loaded and
widened once for up to four of them. All addresses are integers; K and V rows come through a list of row addresses, so
one loop serves every block size, and a widened copy of a tile as well as the cache itself.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from paged_attn_cpu import vectors as v
from paged_attn_cpu.vectors import F32, I64, LANES, VF32, VI32, emit
from paged_core.native.vectors import literal as literal
from paged_core.native.vectors import sum_loop as sum_loop

KEYS = 4  # keys per call of `dots`
TILE = 64  # keys per softmax tile
STRIDE = TILE + LANES  # fp32 elements from one row of scores to the next; element TILE holds the row's correction


CACHE_LINE = 64


@emit
def prefetch_rows(typing: Any, addresses: Any, row_bytes: Any) -> Any:
    """Prefetch KEYS rows of `row_bytes` bytes; addresses: address of their int64 addresses."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        lines = builder.udiv(builder.add(args[1], I64(CACHE_LINE - 1)), I64(CACHE_LINE))
        byte = ir.IntType(8)
        rows = [
            v.address_of(builder, builder.load(v.address_of(builder, args[0], I64, I64(i))), byte) for i in range(KEYS)
        ]

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            for row in rows:
                v.prefetch(builder, builder.gep(row, [builder.mul(index, I64(CACHE_LINE))]), 2)
            return []

        sum_loop(builder, lines, [], body)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@emit
def dots(typing: Any, rows: Any, kind: Any, queries: Any, addresses: Any, chunks: Any, scores: Any) -> Any:
    """Scores of `rows` (literal) queries against KEYS keys.

    queries: address of fp32 rows of `chunks` * LANES elements; addresses: address of KEYS int64 row addresses of K,
    whose elements have the type of `kind`; scores: address of fp32 rows, STRIDE apart.
    """
    num_rows = literal(rows)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        q_address, list_address, num_chunks, out_address = args[2:]
        vector = ir.VectorType(v.stored(kind), LANES)
        width = builder.mul(num_chunks, I64(LANES))
        keys_at = [builder.load(v.address_of(builder, list_address, I64, I64(i))) for i in range(KEYS)]
        key_rows = [v.address_of(builder, address, vector.element) for address in keys_at]
        q_rows = [v.address_of(builder, q_address, F32, builder.mul(width, I64(i))) for i in range(num_rows)]

        def body(index: ir.Value, accumulators: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(index, I64(LANES))
            keys = [v.widen(builder, v.load(builder, builder.gep(row, [offset]), vector), kind) for row in key_rows]
            results = []
            for i, row in enumerate(q_rows):
                q = v.load(builder, builder.gep(row, [offset]), VF32)
                sums = accumulators[i * KEYS : (i + 1) * KEYS]
                results += [v.fma(builder, q, key, total) for key, total in zip(keys, sums, strict=True)]
            return results

        sums = sum_loop(builder, num_chunks, [v.constant(0.0)] * (num_rows * KEYS), body)
        for i in range(num_rows):
            quad = v.fold4(builder, sums[i * KEYS : (i + 1) * KEYS], builder.fadd)
            v.store(builder, quad, v.address_of(builder, out_address, F32, I64(i * STRIDE)))
        return context.get_dummy_value()

    return types.none(rows, kind, types.int64, types.int64, types.int64, types.int64), codegen


def prefetch_columns(
    builder: ir.IRBuilder, entry: ir.Value, first: ir.Value, vector: ir.VectorType, num_chunks: int
) -> None:
    """Prefetch `num_chunks` vectors from element `first` of the row whose address is at `entry`."""
    row = v.address_of(builder, builder.load(entry), vector.element, first)
    for element in range(0, num_chunks * LANES, CACHE_LINE // v.element_bytes(vector.element)):
        v.prefetch(builder, builder.gep(row, [I64(element)]), 1)


@emit
def accumulate(
    typing: Any, shape: Any, kind: Any, weights: Any, lists: Any, count: Any, column: Any, acc: Any, width: Any
) -> Any:
    """acc = acc * correction + weights . V for a (rows, chunks) patch; `shape` is the literal 8 * rows + chunks.

    weights: address of fp32 rows, STRIDE apart, the correction in element TILE; lists: addresses of `count` int64 row
    addresses, of V and of the rows whose same columns are prefetched meanwhile; column: first element of the patch;
    acc: address of fp32 rows `width` elements apart.
    """
    num_rows, num_chunks = divmod(literal(shape), 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        w_address, lists_value, num_keys, first, acc_address, row_width = args[2:]
        list_address, ahead_address = (builder.extract_value(lists_value, i) for i in range(2))
        element = v.stored(kind)
        vector = ir.VectorType(element, LANES)
        w_rows = [v.address_of(builder, w_address, F32, I64(i * STRIDE)) for i in range(num_rows)]
        patch = v.address_of(builder, acc_address, F32, first)
        targets = [
            builder.gep(patch, [builder.add(builder.mul(row_width, I64(i)), I64(c * LANES))])
            for i in range(num_rows)
            for c in range(num_chunks)
        ]
        initial = []
        for number, target in enumerate(targets):
            correction = builder.load(builder.gep(w_rows[number // num_chunks], [I64(TILE)]))
            initial.append(builder.fmul(v.load(builder, target, VF32), v.splat(builder, correction)))

        def body(index: ir.Value, accumulators: list[ir.Value]) -> list[ir.Value]:
            row = v.address_of(builder, builder.load(v.address_of(builder, list_address, I64, index)), element, first)
            prefetch_columns(builder, v.address_of(builder, ahead_address, I64, index), first, vector, num_chunks)
            loads = [v.load(builder, builder.gep(row, [I64(c * LANES)]), vector) for c in range(num_chunks)]
            values = [v.widen(builder, bits, kind) for bits in loads]
            row_weights = [v.splat(builder, builder.load(builder.gep(w_row, [index]))) for w_row in w_rows]
            products = [(weight, value) for weight in row_weights for value in values]
            return [v.fma(builder, *product, total) for product, total in zip(products, accumulators, strict=True)]

        for target, total in zip(targets, sum_loop(builder, num_keys, initial, body), strict=True):
            v.store(builder, total, target)
        return context.get_dummy_value()

    return types.none(shape, kind, types.int64, lists, *[types.int64] * 4), codegen


def soften(builder: ir.IRBuilder, exp: Any, values: list[ir.Value], row: Any, bounds: Any) -> list[ir.Value]:
    """One online-softmax step: the weights of a row's TILE scores, unrounded; the row's state moves on.

    exp: how to take it; row: addresses of the row's scores, whose element TILE becomes the correction, and of its
    state, (maximum, sum) in fp32; only keys bounds[0] <= j <= bounds[1] of the tile are visible, whatever is where the
    others are. A row that has seen no key keeps maximum -inf and sum 0.
    """
    hidden = v.constant(float("-inf"))
    seen = zip(seen_lanes(builder, *bounds), values, strict=True)
    visible = [builder.select(lanes, value, hidden) for lanes, value in seen]
    maximum, total = (v.address_of(builder, row[1], F32, I64(i)) for i in range(2))
    old = builder.load(maximum)
    highest = v.maximum(builder, v.maximum(builder, *visible[:2]), v.maximum(builder, *visible[2:]))
    new = v.maximum(builder, old, v.fold(builder, highest, lambda a, b: v.maximum(builder, a, b)))
    unseen = builder.fcmp_ordered("==", new, ir.Constant(F32, float("-inf")))
    origin = v.splat(builder, builder.select(unseen, ir.Constant(F32, 0.0), new))
    corrections = exp(builder, builder.fsub(v.splat(builder, old), origin))
    correction = builder.extract_element(corrections, ir.Constant(v.I32, 0))
    weights = [exp(builder, builder.fsub(value, origin)) for value in visible]
    added = v.fold(builder, builder.fadd(builder.fadd(*weights[:2]), builder.fadd(*weights[2:])), builder.fadd)
    builder.store(builder.fadd(builder.fmul(builder.load(total), correction), added), total)
    builder.store(new, maximum)
    builder.store(correction, v.address_of(builder, row[0], F32, I64(TILE)))
    return weights


@emit
def softmax_row(typing: Any, scores: Any, state: Any, low: Any, high: Any) -> Any:
    """`soften` in place: scores: address of TILE fp32 scores and the correction; state: address of (maximum, sum)."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        sources = [v.address_of(builder, args[0], F32, I64(c)) for c in range(0, TILE, LANES)]
        values = [v.load(builder, source, VF32) for source in sources]
        weights = soften(builder, v.exp, values, args[:2], args[2:])
        for weight, source in zip(weights, sources, strict=True):
            v.store(builder, weight, source)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 4), codegen


def seen_lanes(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> list[ir.Value]:
    """For each vector of a tile's scores, which lanes are those of keys low <= j <= high."""
    bounds = [v.splat(builder, builder.trunc(bound, v.I32)) for bound in (low, high)]
    result = []
    for start in range(0, TILE, LANES):
        lanes = ir.Constant(VI32, [start + i for i in range(LANES)])
        above, below = builder.icmp_signed(">=", lanes, bounds[0]), builder.icmp_signed("<=", lanes, bounds[1])
        result.append(builder.and_(above, below))
    return result


@emit
def cap_row(typing: Any, scores: Any, softcap: Any, scale: Any) -> Any:
    """softcap * tanh(scale * score / softcap) over one row of TILE scores."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        row, cap, factor = args
        caps, factors = v.splat(builder, cap), v.splat(builder, factor)
        for c in range(0, TILE, LANES):
            source = v.address_of(builder, row, F32, I64(c))
            value = builder.fmul(v.load(builder, source, VF32), factors)
            value = v.tanh(builder, builder.fdiv(value, caps))
            v.store(builder, builder.fmul(value, caps), source)
        return context.get_dummy_value()

    return types.none(types.int64, types.float32, types.float32), codegen


@emit
def scale_row(typing: Any, scores: Any, scale: Any) -> Any:
    """scale * score over one row of TILE scores."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        factors = v.splat(builder, args[1])
        for c in range(0, TILE, LANES):
            source = v.address_of(builder, args[0], F32, I64(c))
            v.store(builder, builder.fmul(v.load(builder, source, VF32), factors), source)
        return context.get_dummy_value()

    return types.none(types.int64, types.float32), codegen


@emit
def widen_row(typing: Any, kind: Any, source: Any, target: Any, chunks: Any) -> Any:
    """Copy `chunks` * LANES elements of the type of `kind` to fp32."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(v.stored(kind), LANES)

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(index, I64(LANES))
            bits = v.load(builder, v.address_of(builder, args[1], vector.element, offset), vector)
            v.store(builder, v.widen(builder, bits, kind), v.address_of(builder, args[2], F32, offset))
            return []

        sum_loop(builder, args[3], [], body)
        return context.get_dummy_value()

    return types.none(kind, *[types.int64] * 3), codegen


@emit
def add_scaled(typing: Any, source: Any, target: Any, chunks: Any, factor: Any) -> Any:
    """target += source * factor over `chunks` * LANES fp32 elements, product and sum rounded each."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        factors = v.splat(builder, args[3])

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(index, I64(LANES))
            read, written = (v.address_of(builder, address, F32, offset) for address in args[:2])
            product = builder.fmul(v.load(builder, read, VF32), factors)
            v.store(builder, builder.fadd(v.load(builder, written, VF32), product), written)
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3, types.float32), codegen


@emit
def exp_row(typing: Any, source: Any, target: Any, chunks: Any) -> Any:
    """exp over `chunks` * LANES fp32 elements; the kernels' own exp, made callable for merging and for tests."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(index, I64(LANES))
            value = v.load(builder, v.address_of(builder, args[0], F32, offset), VF32)
            v.store(builder, v.exp(builder, value), v.address_of(builder, args[1], F32, offset))
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen
