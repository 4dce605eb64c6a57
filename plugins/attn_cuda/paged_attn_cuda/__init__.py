"""attn_cuda: paged attention on NVIDIA GPUs, written in CUDA C++."""

from __future__ import annotations

from paged_attn_cuda.provider import CudaAttentionProvider
from paged_core.api.hookspecs import hookimpl

__all__ = ["CudaAttentionProvider", "paged_attention"]


@hookimpl
def paged_attention() -> CudaAttentionProvider:
    """Offer the CUDA backend."""
    return CudaAttentionProvider()
