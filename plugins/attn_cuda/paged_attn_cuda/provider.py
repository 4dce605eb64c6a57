"""The provider of attn_cuda: light, judges a need with every reason at once, and creates the backend."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from pydantic import Field

from paged_attn_cuda.toolchain import EXTRA, MIN_CAPABILITY, Toolchain, find_toolchain, target_arch
from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.device.presence import Presence, cuda_presence

DTYPES = ("float32", "bfloat16", "float16")
FP8 = "float8_e4m3fn"
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
HEAD_DIM_STEP = 16
MAX_HEAD_DIM = 256


class CudaAttentionSettings(PluginSettings):
    """Settings of attn_cuda."""

    cache_dir: str | None = Field(
        None, description="folder for compiled kernels; unset = `kernels-cuda` in the engine's cache folder"
    )
    arch: str | None = Field(
        None,
        pattern=r"^sm_\d{2,3}[af]?$",
        description="architecture that kernels are compiled for, such as sm_90; unset = the GPU's own",
    )


class CudaAttentionProvider(Provider[AttentionNeed, Attention]):
    """Paged attention on NVIDIA GPUs by kernels in CUDA C++, compiled on first use."""

    name: ClassVar[str] = "attn_cuda"
    kind: ClassVar[str] = "attn"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 80
    summary: ClassVar[str] = "paged decode and prefill on NVIDIA GPUs, CUDA C++ compiled by NVRTC on first use"
    Settings: ClassVar[type[PluginSettings]] = CudaAttentionSettings
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"sliding_window", "softcap", "lse", "fused_rope", "graphs", "fp32", "bf16", "fp16", "fp8", "swap"}
    )

    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def probe(self, need: AttentionNeed) -> Fit:
        """A GPU of compute capability 8.0 or newer, torch that sees it, and NVRTC; head_dim and block size as listed.

        On the device cpu everything that CUDA would need and this machine lacks is told as well.
        """
        reasons = [*self.missing_capabilities(need.required), *_shape_reasons(need)]
        presence, toolchain = cuda_presence(), find_toolchain()
        missing = [*presence.reasons, *_gpu_reasons(presence, toolchain), *toolchain.reasons]
        hints = [*presence.hints, *([EXTRA] if toolchain.reasons else [])]
        if need.device != "cuda":
            reasons.insert(0, f"attn_cuda runs on the device cuda only, not on {need.device}")
            hints += [] if missing else ["--device=cuda"]
        elif not missing and not _torch_sees_a_gpu():
            missing.append("the driver shows a GPU, but torch sees none (torch.cuda.is_available() is false)")
            hints.append("let python -c 'import torch; torch.zeros(1).cuda()' say why")
        return Fit.judge([*reasons, *missing], hints)

    def create(self, need: AttentionNeed, settings: CudaAttentionSettings, plugins: PluginRegistry) -> Attention:
        """The backend; kernels that `need` calls for come from the disk cache or are compiled now."""
        from paged_attn_cuda.backend import CudaAttention
        from paged_attn_cuda.driver import DeviceLauncher

        return CudaAttention(need, DeviceLauncher.create(settings.cache_dir or need.cache_dir, settings.arch))


def _shape_reasons(need: AttentionNeed) -> list[str]:
    """What about types and sizes no kernel is compiled for."""
    reasons = []
    if need.dtype not in DTYPES:
        reasons.append(f"attn_cuda does not support {need.dtype} for the activations; it has {', '.join(DTYPES)}")
    if need.kv_dtype not in (need.dtype, FP8):
        reasons.append(
            f"attn_cuda does not keep {need.kv_dtype} in the KV cache of {need.dtype} activations; it has "
            f"{need.dtype} and {FP8}"
        )
    if need.head_dim % HEAD_DIM_STEP or not 1 <= need.head_dim <= MAX_HEAD_DIM:
        reasons.append(
            f"attn_cuda needs a head_dim that is a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}, not "
            f"{need.head_dim}"
        )
    if need.block_size not in BLOCK_SIZES:
        reasons.append(f"attn_cuda needs a block_size of {', '.join(map(str, BLOCK_SIZES))}, not {need.block_size}")
    if need.num_kv_heads < 1 or need.num_heads < 1 or need.num_heads % need.num_kv_heads:
        reasons.append(f"attn_cuda cannot share {need.num_kv_heads} KV heads among {need.num_heads} query heads")
    return reasons


def _gpu_reasons(presence: Presence, toolchain: Toolchain) -> list[str]:
    """What about the first GPU, the one that torch computes on, is too old, or too new for the compiler."""
    if not presence.gpus:
        return []
    gpu = presence.gpus[0]
    shown = f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    if gpu.capability < MIN_CAPABILITY:
        return [f"{shown}; attn_cuda needs {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Ampere) or newer"]
    if toolchain.reasons:
        return []
    reasons = []
    nvrtc = f"NVRTC {toolchain.nvrtc[0]}.{toolchain.nvrtc[1]}"
    if target_arch(gpu.capability, toolchain.archs) is None:
        reasons.append(f"{shown}, for which {nvrtc} does not compile: a newer one is needed")
    if presence.cuda is not None and toolchain.nvrtc[0] > presence.cuda[0]:
        reasons.append(
            f"{nvrtc} compiles for drivers of CUDA {toolchain.nvrtc[0]}, this one speaks {presence.cuda[0]}."
            f"{presence.cuda[1]}: install a newer driver, or cuda-bindings and NVRTC of version {presence.cuda[0]}"
        )
    return reasons


def _torch_sees_a_gpu() -> bool:
    """Asked only where torch is loaded already: whoever chose the device cuda has loaded it."""
    torch: Any = sys.modules.get("torch")
    return torch is None or bool(torch.cuda.is_available())
