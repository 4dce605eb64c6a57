"""The backend of attn_cuda with its kernels on the CPU, plain and checked: for tests, loaded by `--paged-plugin`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paged_attn_cuda import CudaAttentionProvider

from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, Provider
from paged_core.device.fitness import shape_reasons

if TYPE_CHECKING:
    from paged_core.api.provider import PluginRegistry, PluginSettings

FOLDER = str(Path(__file__).parent)
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)


class HostAttentionProvider(Provider[AttentionNeed, Attention]):
    """What attn_cuda declares and refuses, on the device cpu."""

    name: ClassVar[str] = "attn_cuda_host"
    kind: ClassVar[str] = "attn"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 0
    summary: ClassVar[str] = "the kernels of attn_cuda, emulated on the CPU"
    capabilities: ClassVar[frozenset[str]] = CudaAttentionProvider.capabilities

    def probe(self, need: AttentionNeed) -> Fit:
        """attn_cuda's verdict on types and sizes; g++."""
        from cuda_emulation import COMPILER_MISSING

        reasons = [*self.missing_capabilities(need.required), *shape_reasons("attn_cuda", need)]
        if need.device != "cpu":
            reasons.insert(0, f"the emulation runs on the device cpu, not on {need.device}")
        if COMPILER_MISSING is not None:
            reasons.append(COMPILER_MISSING)
        return Fit.judge(reasons)

    def create(self, need: AttentionNeed, settings: PluginSettings, plugins: PluginRegistry) -> Attention:
        """The backend over the emulation."""
        from cuda_emulation import HostLauncher
        from paged_attn_cuda.backend import CudaAttention

        return CudaAttention(need, HostLauncher())


class CheckedAttentionProvider(HostAttentionProvider):
    """The same backend, each call of which is checked for races and for accesses out of bounds."""

    name: ClassVar[str] = "attn_cuda_checked"
    summary: ClassVar[str] = "the kernels of attn_cuda, emulated on the CPU in several orders between guard pages"

    def create(self, need: AttentionNeed, settings: PluginSettings, plugins: PluginRegistry) -> Attention:
        """The backend over the emulation, behind CheckedAttention."""
        from cuda_emulation.checked import CheckedAttention

        return CheckedAttention(need)


@hookimpl
def paged_attention() -> list[HostAttentionProvider]:
    """Offer the emulated backends."""
    return [HostAttentionProvider(), CheckedAttentionProvider()]
