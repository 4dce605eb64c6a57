"""preempt_recompute: victims drop their blocks and compute them again when they return (paper, section 4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from paged_core.api.hookspecs import hookimpl
from paged_core.api.preemption import Eviction, Preemption, PreemptionNeed, num_recomputed_tokens
from paged_core.api.provider import Fit, PluginRegistry, Provider

if TYPE_CHECKING:
    from paged_core.api.request import Group

__all__ = ["RecomputePreemption", "RecomputeProvider", "paged_preemption"]


class RecomputePreemption(Preemption):
    """Always recompute. The price is the computed tokens, each span shared by branches once, at prefill speed."""

    def __init__(self, prefill_tokens_per_s: float) -> None:
        self._tokens_per_s = prefill_tokens_per_s

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        """Recompute, whatever the host offers. Prefix hits on return make it cheaper than the price says."""
        return Eviction("recompute", num_recomputed_tokens(group) / self._tokens_per_s)


class RecomputeProvider(Provider[PreemptionNeed, Preemption]):
    """Offers `RecomputePreemption`; wins `auto`: it needs no host memory, and the prefix cache pays part of it."""

    name: ClassVar[str] = "preempt_recompute"
    kind: ClassVar[str] = "preempt"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 100
    summary: ClassVar[str] = "drop a victim's blocks, compute them again on return"
    capabilities: ClassVar[frozenset[str]] = frozenset({"recompute"})

    def probe(self, need: PreemptionNeed) -> Fit:
        """Fits everywhere."""
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: PreemptionNeed, settings: Any, plugins: PluginRegistry) -> RecomputePreemption:
        """Keep the prefill rate."""
        return RecomputePreemption(need.prefill_tokens_per_s)


@hookimpl
def paged_preemption() -> RecomputeProvider:
    """Register the plugin."""
    return RecomputeProvider()
