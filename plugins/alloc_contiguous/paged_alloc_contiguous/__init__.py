"""alloc_contiguous: one run of blocks per sequence, set aside at admission: what there was before PagedAttention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from paged_core.api.allocator import Allocator, AllocatorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_alloc_contiguous.allocator import ContiguousAllocator

__all__ = ["ContiguousProvider", "ContiguousSettings", "paged_allocator"]

MAX_BLOCK_SIZE = 256


class ContiguousSettings(PluginSettings):
    """Settings of alloc_contiguous."""

    reservation: Literal["max", "pow2", "oracle"] = Field(
        "max",
        description="slots set aside beyond the prompt: max (up to the model's length), oracle (the output's true "
        "length where a simulation knows it, else max_tokens), pow2 (oracle's rounded up to a power of two)",
    )


class ContiguousProvider(Provider[AllocatorNeed, Allocator]):
    """Offers `ContiguousAllocator`."""

    name: ClassVar[str] = "alloc_contiguous"
    kind: ClassVar[str] = "alloc"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 10
    summary: ClassVar[str] = "buddy allocator: a run of blocks reserved ahead for each sequence (Orca), to compare with"
    Settings: ClassVar[type[PluginSettings]] = ContiguousSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"reserves_ahead"})

    def probe(self, need: AllocatorNeed) -> Fit:
        """Any block size from 1 to 256 fits; `num_blocks` 0 means that the pool's size is not known yet."""
        reasons = self.missing_capabilities(need.required)
        if not 1 <= need.block_size <= MAX_BLOCK_SIZE:
            reasons.append(f"block size {need.block_size} is outside 1..{MAX_BLOCK_SIZE}")
        if need.num_blocks < 0:
            reasons.append(f"num_blocks is negative ({need.num_blocks})")
        return Fit.judge(reasons, ["choose --block-size between 1 and 256; 16 is the default"])

    def create(self, need: AllocatorNeed, settings: ContiguousSettings, plugins: PluginRegistry) -> ContiguousAllocator:
        """Build the allocator; no KV memory."""
        from paged_alloc_contiguous.allocator import ContiguousAllocator

        return ContiguousAllocator(need, settings.reservation)


@hookimpl
def paged_allocator() -> ContiguousProvider:
    """Register the allocator."""
    return ContiguousProvider()
