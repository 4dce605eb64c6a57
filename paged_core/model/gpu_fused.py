"""GpuFused: what lies between the products of a decoder layer, one launch each: residual with RMSNorm, gated SiLU.

The plain operators of `paged_core.model.layers` are seven launches for a norm with its residual and two for a gate. In
a captured step of decodes, where a launch takes about two microseconds whatever it does, a model of 32 layers would
spend some 0.8 ms on them (by count; not measured yet).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("paged_core.model")

_GATE_BLOCK = 1024
_ELEMENTS_PER_WARP = 512


class GpuFused:
    """The kernels, with the rounding order of the plain operators: a weight in float32 is multiplied before anything is
    rounded (Gemma). Launched on torch's current stream."""

    def __init__(self) -> None:
        from paged_core.model import gpu_fused_kernels

        self._kernels = gpu_fused_kernels

    def norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm of `x` [rows, size] times `weight` [size]; `delta` [rows, size] is first added to `x`, in place."""
        out = torch.empty_like(x)
        self._norm(x, delta, weight, out, eps)
        return out

    def norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm of every head of `x` [tokens, heads, size] times `weight` [size], in place; tokens may be strided."""
        self._norm(x, None, weight, x, eps)
        return x

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of `gate_up` [rows, 2 * size]: [rows, size]."""
        rows, double = gate_up.shape
        size = double // 2
        out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        grid = (rows, -(-size // _GATE_BLOCK))
        self._kernels.gate_kernel[grid](gate_up.contiguous(), out, size, _GATE_BLOCK, num_warps=4)
        return out

    def _norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
        size, heads = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
        block = 1 << (size - 1).bit_length()
        self._kernels.norm_kernel[(len(x) * heads,)](
            x,
            x if delta is None else delta,
            weight,
            out,
            x.stride(0),
            out.stride(0),
            eps,
            heads,
            size,
            block,
            delta is not None,
            num_warps=min(16, max(1, block // _ELEMENTS_PER_WARP)),
        )


def gpu_fused_for(dtype: torch.dtype) -> GpuFused | None:
    """Kernels for a model of this type on a CUDA device, or None where there is no Triton for this system."""
    try:
        return GpuFused() if dtype in (torch.float32, torch.bfloat16, torch.float16) else None
    except ImportError as error:
        log.warning("norms and gates run operator by operator, which costs launches: %s", error)
        return None
