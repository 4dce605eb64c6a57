"""sched_fcfs: first come, first served, one token budget a step, chunked prefill (paper, section 4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_fcfs.scheduler import FcfsScheduler

__all__ = ["FcfsProvider", "FcfsSettings", "paged_scheduler"]


class FcfsSettings(PluginSettings):
    """Settings of sched_fcfs."""

    watermark: float = Field(0.01, ge=0.0, lt=1.0, description="share of the pool that admissions leave free")


class FcfsProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `FcfsScheduler`."""

    name: ClassVar[str] = "sched_fcfs"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 100
    summary: ClassVar[str] = "first come, first served; chunked prefill beside decodes; newest victim first"
    Settings: ClassVar[type[PluginSettings]] = FcfsSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"fcfs", "chunked_prefill"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: FcfsSettings, plugins: PluginRegistry) -> FcfsScheduler:
        """Build the scheduler."""
        from paged_sched_fcfs.scheduler import FcfsScheduler

        return FcfsScheduler(need, settings.watermark)


@hookimpl
def paged_scheduler() -> FcfsProvider:
    """Register the scheduler."""
    return FcfsProvider()
