"""alloc_cow: reference-counted blocks with copy-on-write, prefix cache and a host tier (paper, sections 4.2 to 4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from paged_core.api.allocator import Allocator, AllocatorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_alloc_cow.allocator import CowAllocator

__all__ = ["CowProvider", "paged_allocator"]

MAX_BLOCK_SIZE = 256


class CowProvider(Provider[AllocatorNeed, Allocator]):
    """Offers `CowAllocator`. It has no settings: pool sizes, prefix cache and hash seed are the engine's."""

    name: ClassVar[str] = "alloc_cow"
    kind: ClassVar[str] = "alloc"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 100
    summary: ClassVar[str] = "on-demand blocks, copy-on-write forks, prefix cache, host swap pool"
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

    def create(self, need: AllocatorNeed, settings: PluginSettings, plugins: PluginRegistry) -> CowAllocator:
        """Build the allocator: one int32 table array and one count per block; no KV memory."""
        from paged_alloc_cow.allocator import CowAllocator

        return CowAllocator(need)


@hookimpl
def paged_allocator() -> CowProvider:
    """Register the allocator."""
    return CowProvider()
