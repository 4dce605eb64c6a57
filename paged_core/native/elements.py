"""What kernels need beyond numba: addresses as pointers, atomic counters, bfloat16, floats as bit patterns.

Stored elements are float32, or uint16 for the bits of bfloat16. Scalars only: LLVM makes vectors of loops over them.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import float32, int32, types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
F = TypeVar("F", bound="Callable[..., Any]")
F32 = ir.FloatType()
I32 = ir.IntType(32)


_KERNEL: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def kernel(function: F) -> F:
    """`numba.njit` as every kernel uses it: no GIL, no Python errors (division by zero included).

    For other kernels to call: what would make it callable from Python is left out, a fifth of the time to compile, and
    such a call ends the process. Tests call one from a function under `numba.njit`.
    """
    return cast("F", numba.njit(**_KERNEL, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def summing_kernel(function: F) -> F:
    """A kernel whose sums may be taken as several running sums: in one order for one length, whatever surrounds it."""
    return cast("F", numba.njit(**_KERNEL, fastmath={"reassoc", "contract"})(function))


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


@emit
def bits_of(typing: Any, value: Any) -> Any:
    """The bits of a float32, as int32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I32)

    return types.int32(types.float32), codegen


@kernel
def exp(x: Any) -> Any:
    """e**x in float32 to 2 ulp, without a call, so that loops vectorise (Cody and Waite 1980; Cephes' polynomial)."""
    bounded = min(max(x, float32(-87.33654)), float32(88.72283))
    turns = np.floor(bounded * float32(1.44269504) + float32(0.5))
    rest = bounded - turns * float32(0.693359375) - turns * float32(-2.12194440e-4)
    y = float32(1.9875691500e-4)
    y = y * rest + float32(1.3981999507e-3)
    y = y * rest + float32(8.3334519073e-3)
    y = y * rest + float32(4.1665795894e-2)
    y = y * rest + float32(1.6666665459e-1)
    y = y * rest + float32(5.0000001201e-1)
    y = y * rest * rest + rest + float32(1.0)
    power = float_of(int32((int32(turns) + int32(127)) << int32(23)))
    return y * power if x == x else x


@emit
def observe(typing: Any, counter: Any) -> Any:
    """Atomically read the int64 at an address; later reads see what was written before its last `claim`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@emit
def call_native(typing: Any, function: Any, parameters: Any) -> Any:
    """Call the native void(int64*) at the address `function` with the address `parameters`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64).as_pointer()])
        target = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(target, [builder.inttoptr(args[1], ir.IntType(64).as_pointer())])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@emit
def yield_core(typing: Any, function: Any) -> Any:
    """Let another thread have the core: call the int() at the address `function`; 0 = there is none."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.if_then(builder.icmp_signed("!=", args[0], ir.Constant(args[0].type, 0))):
            builder.call(builder.inttoptr(args[0], ir.FunctionType(I32, []).as_pointer()), [])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@emit
def pause(typing: Any) -> Any:
    """Tell the processor that this is a waiting loop, where it has an instruction for that."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.none(), codegen


@emit
def cycles(typing: Any) -> Any:
    """The processor's cycle counter."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter"), [])

    return types.int64(), codegen
