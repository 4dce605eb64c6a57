"""The provider of attn_triton: light, judges a need with every reason at once, and creates the backend."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from paged_core.api.attention import Attention, AttentionNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.device.fitness import age_reasons, shape_reasons
from paged_core.device.presence import cuda_presence

if TYPE_CHECKING:
    from paged_attn_triton.shapes import Shape
    from paged_attn_triton.splits import SplitRule

INTERPRETER = "TRITON_INTERPRET"
_INTERPRETED_PROCESSORS = 8  # so that small steps are cut into parts in the interpreter, too


class TritonAttentionSettings(PluginSettings):
    """Settings of attn_triton."""

    split_tokens: int = Field(
        256, ge=1, description="least number of context tokens that a decode sets a program of its own to read"
    )
    tune: bool = Field(
        False, description="measure tiles on this GPU when a backend is created; the choice is kept in the cache folder"
    )


class TritonAttentionProvider(Provider[AttentionNeed, Attention]):
    """Paged attention on NVIDIA GPUs by Triton kernels."""

    name: ClassVar[str] = "attn_triton"
    kind: ClassVar[str] = "attn"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 90
    summary: ClassVar[str] = "paged decode and prefill on NVIDIA GPUs, kernels in Triton compiled on first use"
    Settings: ClassVar[type[PluginSettings]] = TritonAttentionSettings
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"sliding_window", "softcap", "lse", "fused_rope", "batch_invariant", "graphs", "swap"}
        | {"fp32", "bf16", "fp16", "fp8"}
    )
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def probe(self, need: AttentionNeed) -> Fit:
        """A GPU of compute capability 8.0 or newer and triton; or the device cpu, in Triton's interpreter."""
        reasons = [*self.missing_capabilities(need.required), *shape_reasons(self.name, need)]
        hints = []
        if importlib.util.find_spec("triton") is None:
            reasons.append("attn_triton needs triton, which is not installed")
            hints.append("pip install triton")
        if need.device == "cpu" and _is_interpreted():
            return Fit.judge(reasons, hints)
        presence = cuda_presence()
        missing = [*presence.reasons, *age_reasons(self.name, presence)]
        hints += presence.hints
        if need.device != "cuda":
            reasons.append(
                f"attn_triton runs on the device cuda, not on {need.device}, unless {INTERPRETER}=1 lets Triton's "
                "interpreter run its kernels on the device cpu, slowly"
            )
            hints += [] if missing else ["--device=cuda"]
        return Fit.judge([*reasons, *missing], hints)

    def create(self, need: AttentionNeed, settings: Any, plugins: PluginRegistry) -> Attention:
        """The backend; kernels are compiled when they are first launched, and kept in Triton's own cache on disk."""
        from paged_attn_triton.attention import TritonAttention
        from paged_attn_triton.shapes import Shape
        from paged_attn_triton.splits import InvariantSplits, SplitRule

        capability, num_processors = 0, _INTERPRETED_PROCESSORS
        if need.device == "cuda":
            import torch

            device = torch.cuda.get_device_properties(torch.cuda.current_device())
            capability, num_processors = device.major * 10 + device.minor, device.multi_processor_count
        rule = InvariantSplits if "batch_invariant" in need.required else SplitRule
        splits = rule(need.num_kv_heads, num_processors, need.max_len, settings.split_tokens)
        shape = Shape.of(need, capability)
        if settings.tune and need.device == "cuda":
            shape = _tuned(need, shape, splits)
        return TritonAttention(need, shape, splits)


def _tuned(need: AttentionNeed, shape: Shape, splits: SplitRule) -> Shape:
    """The shape with tiles measured on this GPU, by this run or an earlier one."""
    import torch

    from paged_attn_triton.measure import Stopwatch
    from paged_attn_triton.tune import tuned

    folder = Path(need.cache_dir) if need.cache_dir else Path.home() / ".triton"
    shape = tuned(shape, torch.cuda.get_device_name(), folder / "kernels-triton", Stopwatch(need, splits))
    torch.cuda.empty_cache()  # what was measured with is not there for long, and the KV pool takes what is free
    return shape


def _is_interpreted() -> bool:
    return os.environ.get(INTERPRETER, "").lower() in {"1", "true", "on", "y", "yes"}
