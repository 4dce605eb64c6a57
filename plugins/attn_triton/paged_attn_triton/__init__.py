"""attn_triton: paged attention on a GPU, written in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from paged_core.api.provider import Provider

__all__ = ["paged_attention"]


@hookimpl
def paged_attention() -> list[Provider[Any, Any]]:
    """Nothing is offered yet."""
    return []
