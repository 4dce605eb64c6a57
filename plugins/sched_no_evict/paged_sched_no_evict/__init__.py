"""sched_no_evict: whoever enters can run to the end it announced; nobody is ever preempted (TensorRT-LLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_no_evict.scheduler import NoEvictScheduler

__all__ = ["NoEvictProvider", "paged_scheduler"]


class NoEvictProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `NoEvictScheduler`."""

    name: ClassVar[str] = "sched_no_evict"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 30
    summary: ClassVar[str] = "TensorRT-LLM's GUARANTEED_NO_EVICT: enters what fits to its announced end; no preemptions"
    Settings: ClassVar[type[PluginSettings]] = PluginSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"fcfs", "chunked_prefill"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: PluginSettings, plugins: PluginRegistry) -> NoEvictScheduler:
        """Build the scheduler."""
        from paged_sched_no_evict.scheduler import NoEvictScheduler

        return NoEvictScheduler(need)


@hookimpl
def paged_scheduler() -> NoEvictProvider:
    """Register the scheduler."""
    return NoEvictProvider()
