"""Variants: every kernel as it is compiled for a shape, named, so that it can be compiled without a GPU.

A variant is what Triton specialises on: argument types, alignment, and constants. Lengths are not among that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paged_attn_triton.copy import copy_kernel
from paged_attn_triton.decode import decode_kernel, merge_kernel
from paged_attn_triton.prefill import prefill_kernel
from paged_attn_triton.write import write_kernel
from paged_core.device.fitness import FP8

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paged_attn_triton.shapes import Shape

_TYPES = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16", FP8: "*u8"}
_ACTIVATIONS = frozenset({"q_ptr", "k_ptr", "v_ptr", "out_ptr", "rotated_ptr"})
_FLOATS = frozenset({"scale", "softcap"})
_TABLES = frozenset({"query_start_ptr", "seq_lens_ptr", "rows_ptr", "tables_ptr"})
_ADDRESSES = frozenset({"slots_ptr", "sources_ptr", "targets_ptr", "pairs_ptr"})
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Variant:
    """One kernel, specialised. `absent`: pointer arguments that are None."""

    name: str
    kernel: Any
    shape: Shape
    constants: Mapping[str, object]
    warps: int
    stages: int
    absent: frozenset[str] = frozenset()

    def compile(self, capability: int) -> Any:
        """The compiled kernel: `asm` holds ptx and cubin, `metadata` its shared memory. Needs no driver."""
        names = self.kernel.arg_names
        signature = {name: self._type(name) for name in names}
        constants = {name: self.constants.get(name) for name in names if signature[name] == "constexpr"}
        aligned = {
            (index,): _ALIGNED
            for index, name in enumerate(names)
            if signature[name].startswith("*") or (name.startswith("stride_") and name != "stride_table_row")
        }
        source = ASTSource(self.kernel, signature, constants, aligned)
        options = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)

    def _type(self, name: str) -> str:
        if name in self.constants or name in self.absent:
            return "constexpr"
        if name in _ACTIVATIONS:
            return _TYPES[self.shape.dtype]
        if name == "kv_ptr":
            return _TYPES[self.shape.kv_dtype]
        if name in _TABLES:
            return "*i32"
        if name in _ADDRESSES:
            return "*i64"
        if name.endswith("_ptr"):
            return "*fp32"
        return "fp32" if name in _FLOATS else "i32"


def variants_of(shape: Shape, flags: tuple[bool, bool] = (False, False), half: int = 0) -> Iterator[Variant]:
    """The kernels of a shape. `flags`: window, softcap; `half`: elements rotated with as many others."""
    decode, prefill = shape.decode_config, shape.prefill_config(*flags)
    scales = frozenset() if shape.in_codes else frozenset({"k_scales_ptr", "v_scales_ptr"})
    no_lse = scales | {"lse_ptr"}
    rope = scales if half else scales | {"cos_ptr", "sin_ptr", "rotated_ptr"}
    yield Variant("write", write_kernel, shape, shape.write_constants(half), 4, 1, rope)
    yield Variant("decode", decode_kernel, shape, shape.decode_constants(*flags), decode.warps, decode.stages, no_lse)
    yield Variant("merge", merge_kernel, shape, shape.merge_constants(flags[0]), 4, 1, no_lse)
    yield Variant(
        "prefill", prefill_kernel, shape, shape.prefill_constants(*flags), prefill.warps, prefill.stages, no_lse
    )
    yield Variant("copy", copy_kernel, shape, shape.copy_constants(), 4, 1)
