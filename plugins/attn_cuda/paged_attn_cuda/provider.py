"""The provider of attn_cuda: light, judges a need with every reason at once, and creates the backend."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from pydantic import Field

from paged_attn_cuda.toolchain import EXTRA, MIN_DRIVER, Toolchain, find_toolchain, glance, target_arch
from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.device.fitness import age_reasons, shape_reasons
from paged_core.device.presence import Presence, cuda_presence


class CudaAttentionSettings(PluginSettings):
    """Settings of attn_cuda."""

    cache_dir: str | None = Field(
        None, description="folder whose `kernels-cuda` holds compiled kernels; unset = the engine's cache folder"
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
        {
            "sliding_window",
            "softcap",
            "lse",
            "fused_rope",
            "batch_invariant",
            "graphs",
            "fp32",
            "bf16",
            "fp16",
            "fp8",
            "swap",
        }
    )

    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def probe(self, need: AttentionNeed) -> Fit:
        """A GPU of compute capability 8.0 or newer, torch that sees it, and NVRTC; head_dim and block size as listed.

        On the device cpu everything that CUDA would need and this machine lacks is told as well.
        """
        reasons = [*self.missing_capabilities(need.required), *shape_reasons(self.name, need)]
        presence = cuda_presence()
        toolchain = find_toolchain() if need.device == "cuda" or presence.gpus else glance()
        missing = [*presence.reasons, *(age_reasons(self.name, presence) or _compiler_reasons(presence, toolchain))]
        missing += toolchain.reasons
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


def _compiler_reasons(presence: Presence, toolchain: Toolchain) -> list[str]:
    """Why NVRTC does not compile for the first GPU, the one that torch computes on, or not for its driver."""
    if not presence.gpus or toolchain.reasons:
        return []
    gpu, nvrtc = presence.gpus[0], f"NVRTC {toolchain.nvrtc[0]}.{toolchain.nvrtc[1]}"
    reasons = []
    if target_arch(gpu.capability, toolchain.archs) is None:
        reasons.append(
            f"{gpu.name} has compute capability {gpu.shown}, for which {nvrtc} does not compile: a newer one is needed"
        )
    if presence.cuda is not None and presence.cuda < MIN_DRIVER:
        shown, wanted = (".".join(map(str, version)) for version in (presence.cuda, MIN_DRIVER))
        reasons.append(f"the NVIDIA driver speaks CUDA {shown}, attn_cuda needs {wanted}: install a newer one")
    elif presence.cuda is not None and toolchain.nvrtc[0] > presence.cuda[0]:
        reasons.append(
            f"{nvrtc} compiles for drivers of CUDA {toolchain.nvrtc[0]}, this one speaks {presence.cuda[0]}."
            f"{presence.cuda[1]}: install a newer driver, or cuda-bindings and NVRTC of version {presence.cuda[0]}"
        )
    return reasons


def _torch_sees_a_gpu() -> bool:
    """Asked only where torch is loaded already: whoever chose the device cuda has loaded it."""
    torch: Any = sys.modules.get("torch")
    return torch is None or bool(torch.cuda.is_available())
