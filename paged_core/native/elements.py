"""What kernels need beyond numba: addresses as pointers, atomic counters, bfloat16, floats as bit patterns.

Stored elements are float32, or uint16 for the bits of bfloat16. Scalars only: LLVM makes vectors of loops over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as numba_intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
F = TypeVar("F", bound="Callable[..., Any]")
F32 = ir.FloatType()
I32 = ir.IntType(32)


def kernel(function: F) -> F:
    """`numba.njit` as every kernel uses it: no GIL, no Python errors (division by zero included)."""
    return cast("F", numba.njit(nogil=True, error_model="numpy")(function))


def summing_kernel(function: F) -> F:
    """A kernel whose sums may be taken as several running sums: in one order for one length, whatever surrounds it."""
    return cast("F", numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})(function))


def emit(function: Callable[Concatenate[Any, P], Any]) -> Callable[P, Any]:
    """`numba.extending.intrinsic`, typed as what kernels see: the function without its typing context."""
    return cast("Callable[P, Any]", numba_intrinsic(function))


@emit
def pointer(typing: Any, address: Any) -> Any:
    """An integer address as the pointer `numba.carray` takes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@emit
def claim(typing: Any, counter: Any, amount: Any) -> Any:
    """Atomically add `amount` to the int64 at an address and return its old value; orders memory both ways."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", target, args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@emit
def widened(typing: Any, stored: Any) -> Any:
    """A stored element as float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if stored == types.float32:
            return args[0]
        return builder.bitcast(builder.shl(builder.zext(args[0], I32), ir.Constant(I32, 16)), F32)

    return types.float32(stored), codegen


@emit
def narrowed(typing: Any, value: Any, kind: Any) -> Any:
    """A float32 as a stored element of the type of `kind`: rounded to nearest even; NaN stays NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if kind == types.float32:
            return args[0]
        bits = builder.bitcast(args[0], I32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, ir.Constant(I32, 0x7FFF))), ir.Constant(I32, 16))
        spoiled = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(spoiled, ir.Constant(I32, 0x7FC0), rounded), ir.IntType(16))

    return kind(types.float32, kind), codegen


@emit
def float_of(typing: Any, bits: Any) -> Any:
    """The float32 with these bits (int32)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), codegen
