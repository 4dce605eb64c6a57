"""sched_peak: admits by the fullest moment to come, as past answers' lengths predict it (LightLLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_peak.scheduler import PeakScheduler

__all__ = ["PeakProvider", "PeakSettings", "paged_scheduler"]


class PeakSettings(PluginSettings):
    """Settings of sched_peak."""

    window: int = Field(1000, ge=1, description="finished answers whose lengths are remembered")
    margin: float = Field(0.03, ge=0.0, lt=1.0, description="share of the pool that the predicted peak leaves free")


class PeakProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `PeakScheduler`."""

    name: ClassVar[str] = "sched_peak"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 25
    summary: ClassVar[str] = "LightLLM's past-future: enters while the predicted peak of memory fits; few preemptions"
    Settings: ClassVar[type[PluginSettings]] = PeakSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"fcfs", "chunked_prefill"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: PeakSettings, plugins: PluginRegistry) -> PeakScheduler:
        """Build the scheduler."""
        from paged_sched_peak.scheduler import PeakScheduler

        return PeakScheduler(need, settings)


@hookimpl
def paged_scheduler() -> PeakProvider:
    """Register the scheduler."""
    return PeakProvider()
