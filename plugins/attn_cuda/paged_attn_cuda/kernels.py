"""Kernels by name: instantiations of the templates in csrc, their sizes, and their arguments as ctypes scalars.

A `Bound` kernel's scalars are made once; whoever launches it sets the values that differ from the launch before.
"""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from paged_core.device.fitness import DTYPES, ELEMENT_BYTES, FP8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_attn_cuda.launcher import Launcher

ELEMENTS = {"float32": "float", "bfloat16": "paged::bf16", "float16": "paged::fp16", FP8: "paged::e4m3"}
HEAD_DIMS = (64, 96, 128, 256)
"""Sizes that kernels are compiled for; others are padded in shared memory to the next one."""
VECTOR_BYTES = 16
_WARP = 32

WRITE_THREADS = 128
COPY_THREADS = 256
COPY_VECTORS = 4
_MERGE_THREADS = 128
DECODE_ROWS = 16
"""Query heads that a program of decode serves: the rows of one matrix."""

_CACHE = {
    "cache": c_void_p,
    "scales": c_void_p,
    "query_start": c_void_p,
    "lengths": c_void_p,
    "table_rows": c_void_p,
    "tables": c_void_p,
    "stride_table": c_int64,
}
_OUTPUT = {"out": c_void_p, "lse": c_void_p}
_STRIDES = {"stride_out": c_int64, "stride_q": c_int64}
_PARTS = {"partial_sums": c_void_p, "partial_stats": c_void_p}
_SCALE = {"scale": c_float, "softcap": c_float, "window": c_int32}
_SHAPE = {"num_heads": c_int32, "num_kv_heads": c_int32, "head_dim": c_int32, "block_shift": c_int32}

PARAMETERS: dict[str, dict[str, Any]] = {
    "write": {
        **dict.fromkeys(("q", "k", "v"), c_void_p),
        **dict.fromkeys(("stride_q", "stride_k", "stride_v"), c_int64),
        **dict.fromkeys(("rotated", "cache", "slots", "scales", "cos", "sin"), c_void_p),
        "stride_cos": c_int64,
        "stride_sin": c_int64,
        "half": c_int32,
        **_SHAPE,
    },
    "decode": {**_OUTPUT, "q": c_void_p, **_STRIDES, **_PARTS, **_CACHE, **_SCALE, "num_splits": c_int32, **_SHAPE},
    "prefill": {
        **_OUTPUT,
        "q": c_void_p,
        **_STRIDES,
        **_CACHE,
        **_SCALE,
        **dict.fromkeys(("num_sequences", "tile_queries", "heads"), c_int32),
        **_SHAPE,
    },
    "merge": {
        **_OUTPUT,
        "stride_out": c_int64,
        **_PARTS,
        "query_start": c_void_p,
        "lengths": c_void_p,
        **dict.fromkeys(("window", "num_splits", "num_heads", "head_dim"), c_int32),
    },
    "copy": {
        **dict.fromkeys(("sources", "targets", "pairs"), c_void_p),
        "block_vectors": c_int64,
        "num_chunks": c_int32,
    },
}
"""Of each family: its kernels' parameters in order."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One instantiation: family (its source is csrc/<family>.cu), name expression, launch sizes."""

    family: str
    name: str
    threads: int
    shared_bytes: int = 0

    @property
    def source(self) -> str:
        """The file in csrc."""
        return f"{self.family}.cu"


@dataclass(frozen=True, slots=True)
class Types:
    """Names of the element types of activations and cache, and the head size as compiled."""

    dtype: str
    kv_dtype: str
    head_dim: int

    @classmethod
    def of(cls, dtype: str, kv_dtype: str, head_dim: int) -> Types:
        """The smallest compiled head size that holds `head_dim`."""
        return cls(dtype, kv_dtype, next(size for size in HEAD_DIMS if size >= head_dim))

    def vector(self) -> int:
        """Activations in a vector."""
        return VECTOR_BYTES // ELEMENT_BYTES[self.dtype]

    def write(self, width: int) -> Instance:
        """`width` elements at a time: `vector()`, or 1 where rotated halves are no multiple of it."""
        return Instance("write", f"paged::write<{self._elements()}, {width}>", WRITE_THREADS)

    def decode(self) -> Instance:
        """Sizes as DecodeShape in csrc/shape.cuh."""
        element, cached = ELEMENT_BYTES[self.dtype], ELEMENT_BYTES[self.kv_dtype]
        keys = 8 if cached == 4 else 16 if cached == 2 or element == 4 else 32
        warps, stages = 2 if self.head_dim > 128 else 4, 2 if self.head_dim > 64 else 4
        shared = DECODE_ROWS * self._row(self.dtype) + warps * stages * 2 * keys * self._row(self.kv_dtype)
        return Instance("decode", f"paged::decode<{self._elements()}, {self.head_dim}>", warps * _WARP, shared)

    def prefill_rows(self) -> int:
        """Rows of a prefill's tile, one for each query and head: ROWS of PrefillShape."""
        return 128 if ELEMENT_BYTES[self.dtype] == 2 and self.head_dim <= 128 else 64

    def prefill(self) -> Instance:
        """Sizes as PrefillShape in csrc/shape.cuh."""
        keys = 32 if ELEMENT_BYTES[self.dtype] == 2 else 16 if self.head_dim <= 128 else 8
        shared = self.prefill_rows() * self._row(self.dtype) + 4 * keys * self._row(self.kv_dtype)
        return Instance("prefill", f"paged::prefill<{self._elements()}, {self.head_dim}>", 4 * _WARP, shared)

    def merge(self) -> Instance:
        """One for each type of activations."""
        return Instance("merge", f"paged::merge<{ELEMENTS[self.dtype]}>", _MERGE_THREADS)

    def _elements(self) -> str:
        return f"{ELEMENTS[self.dtype]}, {ELEMENTS[self.kv_dtype]}"

    def _row(self, dtype: str) -> int:
        """Bytes of a row in shared memory: one vector more than it needs."""
        return self.head_dim * ELEMENT_BYTES[dtype] + VECTOR_BYTES


COPY = Instance("copy", "paged::copy", COPY_THREADS)


def instances() -> Iterator[Instance]:
    """Every instantiation that some need may ask for, each once."""
    yield COPY
    for dtype in DTYPES:
        yield Types(dtype, dtype, HEAD_DIMS[0]).merge()
        for kv_dtype in (dtype, FP8):
            any_size = Types(dtype, kv_dtype, HEAD_DIMS[0])
            yield from (any_size.write(width) for width in (any_size.vector(), 1))
    for dtype, narrow, head_dim in product(DTYPES, (False, True), HEAD_DIMS):
        types = Types(dtype, FP8 if narrow else dtype, head_dim)
        yield from (types.decode(), types.prefill())


class Bound:
    """A kernel and its arguments: `bound.arguments.q.value = ...`, then `bound(grid)`."""

    def __init__(self, launcher: Launcher, instance: Instance, **constants: float) -> None:
        parameters = {name: ctype() for name, ctype in PARAMETERS[instance.family].items()}
        self.arguments: Any = SimpleNamespace(**parameters)
        self._ordered = tuple(parameters.values())
        self._kernel = launcher.kernel(instance.source, instance.name)
        self._threads = instance.threads
        self._shared_bytes = instance.shared_bytes
        self.set(**constants)

    def set(self, **values: float | None) -> None:
        """Values that stay for many launches; None is a null pointer."""
        for name, value in values.items():
            getattr(self.arguments, name).value = value

    def __call__(self, grid: tuple[int, int, int]) -> None:
        """Launch with the arguments as they are now."""
        self._kernel(grid, self._threads, self._shared_bytes, self._ordered)
