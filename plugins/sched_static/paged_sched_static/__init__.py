"""sched_static: fixed batches: the earliest requests together, nobody joins until the last of them is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_static.scheduler import StaticScheduler

__all__ = ["StaticProvider", "StaticSettings", "paged_scheduler"]


class StaticSettings(PluginSettings):
    """Settings of sched_static."""

    batch_size: int = Field(0, ge=0, description="most requests of a batch; 0: as many as memory and budget hold")
    watermark: float = Field(0.01, ge=0.0, lt=1.0, description="share of the pool that a batch leaves free")


class StaticProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `StaticScheduler`."""

    name: ClassVar[str] = "sched_static"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 10
    summary: ClassVar[str] = "FasterTransformer: fixed batches that run until their last member ends, to compare with"
    Settings: ClassVar[type[PluginSettings]] = StaticSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"fcfs"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: StaticSettings, plugins: PluginRegistry) -> StaticScheduler:
        """Build the scheduler."""
        from paged_sched_static.scheduler import StaticScheduler

        return StaticScheduler(need, settings)


@hookimpl
def paged_scheduler() -> StaticProvider:
    """Register the scheduler."""
    return StaticProvider()
