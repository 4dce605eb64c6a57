"""Scalars and addresses inside kernels: element kinds, bit patterns, atomics, and the index arithmetic of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import int64, types
from numba.extending import overload

from paged_attn_cpu import vectors as v
from paged_attn_cpu.vectors import emit, kernel
from paged_core.native.elements import claim as claim
from paged_core.native.elements import observe as observe
from paged_core.native.elements import pointer as pointer

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS = types.uint32
CODES = (types.uint8, types.int8)
"""Kinds of a cache of codes: uint8 where they are multiplied by instruction, int8 elsewhere (quads.py)."""


def by_kind(choose: Callable[[Any], Any]) -> Any:
    """A function of (kind, arguments) for kernels, which is choose(kind): settled when they are compiled.

    What `choose` returns has these two parameters too.
    """

    def called(kind: Any, arguments: Any) -> Any:
        raise TypeError("only a compiled kernel can call this: numba puts the chosen function in its place")

    def implementation(kind: Any, arguments: Any) -> Any:
        return choose(kind)

    overload(called, jit_options={"error_model": "numpy"})(implementation)
    return called


@emit
def widened(typing: Any, bits: Any) -> Any:
    """A stored element as float32; its numba type names its kind (float32, uint16 = bf16, int16 = fp16)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return v.widen(builder, args[0], bits)

    return types.float32(bits), codegen


@emit
def narrowed(typing: Any, value: Any, kind: Any) -> Any:
    """A float32 as a stored element of the type of `kind`, rounded to nearest even."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return v.narrow(builder, args[0], kind)

    return kind(types.float32, kind), codegen


@emit
def is_wide(typing: Any, kind: Any) -> Any:
    """Whether stored elements of the type of `kind` are float32 already; known when the kernel is compiled."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.boolean, kind == types.float32)

    return types.boolean(kind), codegen


@emit
def is_codes(typing: Any, kind: Any) -> Any:
    """Whether the cache holds codes; known when the kernel is compiled."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.boolean, kind in CODES)

    return types.boolean(kind), codegen


@emit
def query_bytes(typing: Any, kind: Any) -> Any:
    """Bytes of one element of the queries in scratch: pairs (uint32) are of bf16, all else is fp32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, 2 if kind == types.uint32 else 4)

    return types.int64(kind), codegen


@emit
def bytes_of(typing: Any, kind: Any) -> Any:
    """Bytes of a stored element of the type of `kind`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, v.element_bytes(v.stored(kind)))

    return types.int64(kind), codegen


FIRST, SECOND = np.int64(0), np.int64(1)  # not literals: kernels are compiled anew for each of those


@kernel
def row_offset(block: Any, part: Any, head: Any, position: Any, shape: Any) -> Any:
    """Element offset of one row of the cache [blocks, 2, kv_heads, block_size, width]; part 0 = K, 1 = V.

    shape: (kv_heads, block_size, width). Everything is widened to 64 bits before the first multiplication.
    """
    num_heads, block_size, width = shape
    row = (int64(block) * 2 + int64(part)) * int64(num_heads) + int64(head)
    return (row * int64(block_size) + int64(position)) * int64(width)
