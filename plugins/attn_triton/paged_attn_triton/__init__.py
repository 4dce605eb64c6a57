"""attn_triton: PagedAttention in Triton, for NVIDIA GPUs from compute capability 8.0 on."""

from __future__ import annotations

from paged_attn_triton.provider import TritonAttentionProvider, TritonAttentionSettings
from paged_core.api.hookspecs import hookimpl

__all__ = ["TritonAttentionProvider", "TritonAttentionSettings", "paged_attention"]


@hookimpl
def paged_attention() -> TritonAttentionProvider:
    """Register attn_triton."""
    return TritonAttentionProvider()
