"""preempt_swap: victims move to host memory and back; without room there they are recomputed (paper, section 4.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from paged_core.api.hookspecs import hookimpl
from paged_core.api.preemption import Eviction, Preemption, PreemptionNeed, num_recomputed_tokens
from paged_core.api.provider import Fit, PluginRegistry, Provider

if TYPE_CHECKING:
    from paged_core.api.request import Group

__all__ = ["SwapPreemption", "SwapProvider", "paged_preemption"]

log = logging.getLogger("paged_core.preempt_swap")


class SwapPreemption(Preemption):
    """Swap while the host has room for all of a victim's blocks, else recompute."""

    def __init__(self, need: PreemptionNeed) -> None:
        self._need = need
        self._warned = False

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        """The price of a swap is moving every distinct block twice, out and in."""
        need = self._need
        if 0 < num_blocks <= host_free:
            return Eviction("swap", 2 * num_blocks * need.block_bytes / need.swap_bytes_per_s)
        if num_blocks > host_free and not self._warned:
            self._warned = True
            log.warning(
                "no host room to swap out %s: it holds %d blocks, %d of %d host blocks are free. It is recomputed "
                "instead, as later ones will be (said once); give swapping more host memory to avoid this",
                group.id,
                num_blocks,
                host_free,
                need.num_host_blocks,
            )
        return Eviction("recompute", num_recomputed_tokens(group) / need.prefill_tokens_per_s)


class SwapProvider(Provider[PreemptionNeed, Preemption]):
    """Offers `SwapPreemption`; chosen by name, since `auto` prefers recompute."""

    name: ClassVar[str] = "preempt_swap"
    kind: ClassVar[str] = "preempt"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 50
    summary: ClassVar[str] = "move a victim's blocks to host memory and back; recompute when there is no room"
    capabilities: ClassVar[frozenset[str]] = frozenset({"swap", "recompute"})

    def probe(self, need: PreemptionNeed) -> Fit:
        """Fits everywhere: a host pool of no blocks (or of unknown size) only means that victims are recomputed."""
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: PreemptionNeed, settings: Any, plugins: PluginRegistry) -> SwapPreemption:
        """Keep rates and sizes."""
        return SwapPreemption(need)


@hookimpl
def paged_preemption() -> SwapProvider:
    """Register the plugin."""
    return SwapProvider()
