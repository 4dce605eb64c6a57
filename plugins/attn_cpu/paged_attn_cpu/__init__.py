"""attn_cpu: paged attention on a CPU."""

from __future__ import annotations

from paged_attn_cpu.provider import CpuAttentionProvider
from paged_core.api.hookspecs import hookimpl

__all__ = ["CpuAttentionProvider", "paged_attention"]


@hookimpl
def paged_attention() -> CpuAttentionProvider:
    """Offer the CPU backend."""
    return CpuAttentionProvider()
