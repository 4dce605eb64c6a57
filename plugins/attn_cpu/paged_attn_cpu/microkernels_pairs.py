"""P . V in pairs of bf16, for processors that multiply those by instruction (`vdpbf16ps`).

    packed V   [TILE / 2] rows of `width` columns, each element a pair: keys 2i and 2i + 1 of one column
    acc        = acc * correction + weight pairs . V, packed (`add_packed`) or straight from the cache (`add_values`)

A product of two bf16 numbers is exact; the instruction adds two of them to an fp32 sum. A sum is built pair by pair in
the order of the keys: it depends neither on the shape of a patch nor on what is in other lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import types

from paged_attn_cpu import pairs
from paged_attn_cpu import vectors as v
from paged_attn_cpu.microkernels import STRIDE, TILE, literal, prefetch_columns, sum_loop
from paged_attn_cpu.vectors import F32, I16, I32, I64, LANES, VF32, VI16, VI32, emit

if TYPE_CHECKING:
    from llvmlite import ir


@emit
def pack_values(typing: Any, addresses: Any, target: Any, chunks: Any) -> Any:
    """Interleave two keys; addresses: address of their int64 row addresses; target: address of a row of packed V."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        rows = [builder.load(v.address_of(builder, args[0], I64, I64(i))) for i in range(2)]

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            column = builder.mul(index, I64(LANES))
            sources = (v.address_of(builder, row, I16, column) for row in rows)
            v.store(builder, pairs.interleave(builder, *sources), v.address_of(builder, args[1], I32, column))
            return []

        sum_loop(builder, args[2], [], body)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen


# ---- products ------------------------------------------------------------------------------------------------------


def _multiply(builder: ir.IRBuilder, shape: tuple[int, int], args: Any, width: ir.Value, load_columns: Any) -> None:
    """acc = acc * correction + weights . V for a patch of (rows, chunks); load_columns(index): the chunks of two keys.

    args: (weights, number of pairs of keys, address of the patch's part of acc).
    """
    num_rows, num_chunks = shape
    w_address, num_pairs, patch = args
    w_rows = [v.address_of(builder, w_address, I32, I64(i * STRIDE)) for i in range(num_rows)]
    targets = [
        v.address_of(builder, patch, F32, builder.add(builder.mul(width, I64(i)), I64(chunk * LANES)))
        for i in range(num_rows)
        for chunk in range(num_chunks)
    ]
    initial = []
    for number, target in enumerate(targets):
        correction = builder.load(builder.gep(w_rows[number // num_chunks], [I64(TILE)]))
        factor = v.splat(builder, builder.bitcast(correction, F32))
        initial.append(builder.fmul(v.load(builder, target, VF32), factor))

    def body(index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        columns = load_columns(index)
        weights = [v.splat(builder, builder.load(builder.gep(row, [index]))) for row in w_rows]
        products = [(weight, column) for weight in weights for column in columns]
        return [pairs.add_products(builder, total, *product) for product, total in zip(products, totals, strict=True)]

    for target, total in zip(targets, sum_loop(builder, num_pairs, initial, body), strict=True):
        v.store(builder, total, target)


@emit
def add_packed(
    typing: Any, shape: Any, weights: Any, packed: Any, count: Any, column: Any, acc: Any, width: Any
) -> Any:
    """acc = acc * correction + weights . packed V for a (rows, chunks) patch; `shape` is the literal 8 * rows + chunks.

    weights: address of rows STRIDE * 4 bytes apart, of pairs of bf16, the fp32 correction in element TILE; packed:
    address of `count` rows of `width` pairs; column: first column of the patch; acc: address of fp32 rows of `width`.
    """
    patch = divmod(literal(shape), 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, w_address, packed_address, num_pairs, first, acc_address, row_width = args

        def load_columns(index: ir.Value) -> list[ir.Value]:
            element = builder.add(builder.mul(index, row_width), first)
            row = v.address_of(builder, packed_address, I32, element)
            return [v.load(builder, builder.gep(row, [I64(i * LANES)]), VI32) for i in range(patch[1])]

        start = builder.add(acc_address, builder.mul(first, I64(4)))
        _multiply(builder, patch, (w_address, num_pairs, start), row_width, load_columns)
        return context.get_dummy_value()

    return types.none(shape, *[types.int64] * 6), codegen


@emit
def add_values(typing: Any, shape: Any, weights: Any, lists: Any, count: Any, column: Any, acc: Any, width: Any) -> Any:
    """As `add_packed`, from rows of the cache, which are interleaved on the way.

    lists: addresses of 2 * `count` int64 row addresses: of V, and of rows whose same columns are prefetched meanwhile.
    """
    patch = divmod(literal(shape), 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, w_address, lists_value, num_pairs, first, acc_address, row_width = args
        list_address, ahead_address = (builder.extract_value(lists_value, i) for i in range(2))

        def load_columns(index: ir.Value) -> list[ir.Value]:
            keys = [builder.add(builder.add(index, index), I64(i)) for i in range(2)]
            rows = []
            for key in keys:
                address = builder.load(v.address_of(builder, list_address, I64, key))
                rows.append(v.address_of(builder, address, I16, first))
                entry = v.address_of(builder, ahead_address, I64, key)
                prefetch_columns(builder, entry, first, VI16, patch[1])
            chunks = [[builder.gep(row, [I64(i * LANES)]) for row in rows] for i in range(patch[1])]
            return [pairs.interleave(builder, *both) for both in chunks]

        start = builder.add(acc_address, builder.mul(first, I64(4)))
        _multiply(builder, patch, (w_address, num_pairs, start), row_width, load_columns)
        return context.get_dummy_value()

    return types.none(shape, types.int64, lists, *[types.int64] * 4), codegen
