"""What the processor that numba compiles for can do; NUMBA_CPU_NAME and NUMBA_CPU_FEATURES count."""

from __future__ import annotations

from numba.core.registry import cpu_target


def has_pairs() -> bool:
    """Whether it multiplies pairs of bf16 (AVX512-BF16)."""
    return _features() >= {"+avx512bf16", "+avx512f", "+avx512bw"}


def has_quads() -> bool:
    """Whether it multiplies quads of bytes (AVX512-VNNI)."""
    return _features() >= {"+avx512vnni", "+avx512f", "+avx512bw"}


def _features() -> set[str]:
    return set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
