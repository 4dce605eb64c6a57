"""The provider of attn_cpu: light, judges a need, and creates the backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

ELEMENT_TYPES = ("fp32", "bf16", "fp16", "u8")
DTYPES = ("float32", "bfloat16", "float16")
CODES = "uint8"
CELL = 16  # keys whose codes lie together
MAX_HEAD_DIM = 256
MAX_BLOCK_SIZE = 256


class CpuAttentionSettings(PluginSettings):
    """Settings of attn_cpu."""

    threads: int = Field(0, ge=0, description="threads for attention; 0 = as many as torch uses")
    bf16_pairs: bool = Field(
        True,
        description="multiply bf16 by bf16 where the processor can (AVX512-BF16); false = widen to fp32 everywhere",
    )
    int8_quads: bool = Field(
        True,
        description="multiply codes of a uint8 cache by instruction where the processor can (AVX512-VNNI); false = by "
        "plain vector operations, with the same products",
    )
    cache_dir: str | None = Field(None, description="folder for compiled kernels; unset = the engine's cache folder")


class CpuAttentionProvider(Provider[AttentionNeed, Attention]):
    """Paged attention on a CPU by numba kernels."""

    name: ClassVar[str] = "attn_cpu"
    kind: ClassVar[str] = "attn"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 100
    summary: ClassVar[str] = "paged decode and prefill on a CPU, native kernels compiled by numba"
    Settings: ClassVar[type[PluginSettings]] = CpuAttentionSettings
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"sliding_window", "softcap", "lse", "fused_rope", "batch_invariant", "shared_prefix", "swap"}
        | {"native_calls", *ELEMENT_TYPES}
    )
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def probe(self, need: AttentionNeed) -> Fit:
        """Any CPU, any of three dtypes, head_dim 1 to 256, block size 1 to 256."""
        reasons = self.missing_capabilities(need.required)
        hints = []
        if need.device != "cpu":
            reasons.append(f"attn_cpu runs on the device cpu only, not on {need.device}")
        for what, dtype, known in (("activations", need.dtype, DTYPES), ("KV cache", need.kv_dtype, (*DTYPES, CODES))):
            if dtype not in known:
                reasons.append(f"attn_cpu does not support {dtype} for the {what}; it has {', '.join(known)}")
        if need.kv_dtype == CODES and need.block_size % CELL:
            reasons.append(
                f"attn_cpu keeps uint8 in blocks of multiples of {CELL} token slots, not of {need.block_size}"
            )
            hints.append(f"--block-size={CELL}")
        if not 1 <= need.head_dim <= MAX_HEAD_DIM:
            reasons.append(f"attn_cpu needs 1 <= head_dim <= {MAX_HEAD_DIM}, not {need.head_dim}")
        if not 1 <= need.block_size <= MAX_BLOCK_SIZE:
            reasons.append(f"attn_cpu needs 1 <= block_size <= {MAX_BLOCK_SIZE}, not {need.block_size}")
        if need.num_kv_heads < 1 or need.num_heads % need.num_kv_heads:
            reasons.append(f"attn_cpu cannot share {need.num_kv_heads} KV heads among {need.num_heads} query heads")
        if importlib.util.find_spec("numba") is None:
            reasons.append("attn_cpu needs numba, which is not installed")
            hints.append("pip install numba")
        return Fit.judge(reasons, hints)

    def create(self, need: AttentionNeed, settings: Any, plugins: PluginRegistry) -> Attention:
        """Compile (or load from the compile cache) the kernels for the need's dtypes and bind a backend."""
        import torch

        folder = settings.cache_dir or (need.cache_dir and str(Path(need.cache_dir) / "kernels"))
        from paged_attn_cpu.backend import CpuAttention
        from paged_core.native.compile import use_cache_dir

        if folder:
            use_cache_dir(folder)

        options = (settings.threads or torch.get_num_threads(), settings.bf16_pairs, settings.int8_quads)
        return CpuAttention(need, *options)
