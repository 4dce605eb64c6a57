"""Compile kernels of attn_triton for one architecture and print their resources: python measure_triton.py sm_90.

A program of its own: the tests run Triton in its interpreter, which a process has or has not. Prints one line of JSON:
the compiler's version, and each kernel's figures by name. What ptxas said is kept next to Triton's own cache.

Which variants. A kernel is compiled anew for element types, sizes and switches, in any combination; these are compiled
here: every pair of types at 128 elements a head; the narrow and the wide head of the types that are not alike (float16
differs from bfloat16 in the name of one instruction only); and around bfloat16 at 128 one thing at a time: groups,
block sizes, head sizes that fill no power of two, windows with soft-caps, no rotation. A variant that another one
equals in all its constants and types is compiled once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton
from paged_attn_triton.shapes import Shape
from paged_attn_triton.variants import variants_of
from ptxas import resources

from paged_core.device.fitness import FP8
from paged_core.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paged_attn_triton.variants import Variant

ALL_HEADS, MIDDLE = (64, 128, 256), (128,)
TYPES = (
    ("float32", "float32", ALL_HEADS),
    ("float32", FP8, MIDDLE),
    ("bfloat16", "bfloat16", ALL_HEADS),
    ("bfloat16", FP8, ALL_HEADS),
    ("float16", "float16", MIDDLE),
    ("float16", FP8, MIDDLE),
)
GROUPS = (1, 8, 16)
BLOCK_SIZES = (8, 128)
ODD_HEADS = (16, 80)


def requests(capability: int) -> Iterator[tuple[Shape, tuple[bool, bool], int]]:
    """Shape, switches (window, soft-cap) and rotated half, of everything that is compiled."""
    base = Shape("bfloat16", "bfloat16", 32, 8, 128, 16, capability)
    for dtype, kv_dtype, heads in TYPES:
        for head_dim in heads:
            yield replace(base, dtype=dtype, kv_dtype=kv_dtype, head_dim=head_dim), (False, False), head_dim // 2
    for group in GROUPS:
        yield replace(base, num_kv_heads=32 // group), (False, False), 64
    for block_size in BLOCK_SIZES:
        yield replace(base, block_size=block_size), (False, False), 64
    for head_dim in ODD_HEADS:
        yield replace(base, head_dim=head_dim), (False, False), head_dim // 2
    yield base, (True, True), 64
    yield base, (False, False), 0


def label(variant: Variant, flags: tuple[bool, bool], half: int) -> str:
    """A name that says what it was specialised on."""
    shape = variant.shape
    words = [variant.name, f"{shape.dtype}/{shape.kv_dtype}", f"head {shape.head_dim}"]
    words += [f"heads {shape.num_heads}/{shape.num_kv_heads}", f"block {shape.block_size}"]
    words += [word for word, is_on in zip(("window", "softcap"), flags, strict=True) if is_on]
    return " ".join([*words, f"rotated {2 * half}"] if variant.name == "write" else words)


def measured(variant: Variant, capability: int, folder: Path) -> dict[str, int]:
    """One kernel's figures. ptxas speaks when it runs; what it said is kept by the hash of Triton's cache."""
    compiled, log = _compile(variant, capability)
    said = folder / f"{compiled.hash}.txt"
    if not log:
        log = said.read_text() if said.exists() else ""
    if not log:  # in Triton's cache, but not in ours
        with triton.knobs.compilation.scope():
            triton.knobs.compilation.always_compile = True
            compiled, log = _compile(variant, capability)
    if not said.exists():  # written elsewhere first: other gates may read at the same time
        written = folder / f"{compiled.hash}.{os.getpid()}"
        written.write_text(log)
        written.replace(said)
    return resources(log, compiled.metadata.shared)


def _compile(variant: Variant, capability: int) -> tuple[Any, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        compiled = variant.compile(capability)
    return compiled, printed.getvalue()


def main(arch: str) -> None:
    """Compile, measure, print."""
    folder = cache_dir() / "gates" / "triton"
    folder.mkdir(parents=True, exist_ok=True)
    triton.knobs.cache.dir = str(folder / "cache")
    triton.knobs.nvidia.dump_ptxas_log = True
    capability = int(arch.removeprefix("sm_"))
    kernels, seen = {}, set()
    for shape, flags, half in requests(capability):
        for variant in variants_of(shape, flags, half):
            same = repr((variant.name, shape.dtype, shape.kv_dtype, sorted(variant.constants.items()), variant.absent))
            if same not in seen:
                kernels[label(variant, flags, half)] = measured(variant, capability, folder)
                seen.add(same)
    print(json.dumps({"compiler": f"Triton {triton.__version__}", "kernels": kernels}))


if __name__ == "__main__":
    main(sys.argv[1])
