"""alloc_radix: copy-on-write blocks whose prefix cache is a radix tree with reference-locked paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from paged_core.api.allocator import Allocator, AllocatorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_alloc_radix.allocator import RadixAllocator

__all__ = ["RadixProvider", "paged_allocator"]

MAX_BLOCK_SIZE = 256


class RadixProvider(Provider[AllocatorNeed, Allocator]):
    """Offers `RadixAllocator`. It has no settings: pool sizes and prefix cache are the engine's. Nothing is hashed."""

    name: ClassVar[str] = "alloc_radix"
    kind: ClassVar[str] = "alloc"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 50
    summary: ClassVar[str] = "copy-on-write blocks, a radix tree of exact prefixes, leaf-first LRU, host swap pool"
    capabilities: ClassVar[frozenset[str]] = frozenset({"prefix_cache", "partial_hits", "fork", "swap", "shrink"})

    def probe(self, need: AllocatorNeed) -> Fit:
        """Any block size from 1 to 256 fits; `num_blocks` 0 means that the pool's size is not known yet."""
        reasons = self.missing_capabilities(need.required)
        if not 1 <= need.block_size <= MAX_BLOCK_SIZE:
            reasons.append(f"block size {need.block_size} is outside 1..{MAX_BLOCK_SIZE}")
        for name in ("num_blocks", "num_host_blocks"):
            if getattr(need, name) < 0:
                reasons.append(f"{name} is negative ({getattr(need, name)})")
        return Fit.judge(reasons, ["choose --block-size between 1 and 256; 16 is the default"])

    def create(self, need: AllocatorNeed, settings: PluginSettings, plugins: PluginRegistry) -> RadixAllocator:
        """Build the allocator: one int32 table array and one count per block; no KV memory."""
        from paged_alloc_radix.allocator import RadixAllocator

        return RadixAllocator(need)


@hookimpl
def paged_allocator() -> RadixProvider:
    """Register the allocator."""
    return RadixProvider()
