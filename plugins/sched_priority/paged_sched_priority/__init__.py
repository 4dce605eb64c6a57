"""sched_priority: the most urgent first, and at the cost of the less urgent; waiting makes urgent."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_priority.scheduler import PriorityScheduler

__all__ = ["PriorityProvider", "PrioritySettings", "paged_scheduler"]


class PrioritySettings(PluginSettings):
    """Settings of sched_priority."""

    ageing_s: float = Field(60.0, gt=0.0, description="seconds of waiting that make up for one step of priority")
    watermark: float = Field(0.01, ge=0.0, lt=1.0, description="share of the pool that admissions leave free")


class PriorityProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `PriorityScheduler`."""

    name: ClassVar[str] = "sched_priority"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 45
    summary: ClassVar[str] = "by Request.priority with ageing; the less urgent leave for the more urgent"
    Settings: ClassVar[type[PluginSettings]] = PrioritySettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"chunked_prefill", "priority"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: PrioritySettings, plugins: PluginRegistry) -> PriorityScheduler:
        """Build the scheduler."""
        from paged_sched_priority.scheduler import PriorityScheduler

        return PriorityScheduler(need, settings)


@hookimpl
def paged_scheduler() -> PriorityProvider:
    """Register the scheduler."""
    return PriorityProvider()
