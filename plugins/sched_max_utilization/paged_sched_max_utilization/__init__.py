"""sched_max_utilization: fills the pool now and pauses the newest when it is full (TensorRT-LLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_max_utilization.scheduler import MaxUtilizationScheduler

__all__ = ["MaxUtilizationProvider", "paged_scheduler"]


class MaxUtilizationProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `MaxUtilizationScheduler`."""

    name: ClassVar[str] = "sched_max_utilization"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 20
    summary: ClassVar[str] = "TensorRT-LLM's MAX_UTILIZATION: enters what fits now; the newest pauses when it is full"
    Settings: ClassVar[type[PluginSettings]] = PluginSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"fcfs", "chunked_prefill"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: PluginSettings, plugins: PluginRegistry) -> MaxUtilizationScheduler:
        """Build the scheduler."""
        from paged_sched_max_utilization.scheduler import MaxUtilizationScheduler

        return MaxUtilizationScheduler(need)


@hookimpl
def paged_scheduler() -> MaxUtilizationProvider:
    """Register the scheduler."""
    return MaxUtilizationProvider()
