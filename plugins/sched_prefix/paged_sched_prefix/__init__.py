"""sched_prefix: whoever finds most of its prompt in the prefix cache enters first; nobody is overtaken for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_prefix.scheduler import PrefixScheduler

__all__ = ["PrefixProvider", "PrefixSettings", "paged_scheduler"]


class PrefixSettings(PluginSettings):
    """Settings of sched_prefix."""

    max_overtakes: int = Field(64, ge=0, description="later arrivals that may enter before a request; 0: none")
    window: int = Field(128, ge=1, description="oldest waiting requests that are compared, each by a cache look-up")
    watermark: float = Field(0.01, ge=0.0, lt=1.0, description="share of the pool that admissions leave free")


class PrefixProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `PrefixScheduler`."""

    name: ClassVar[str] = "sched_prefix"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 50
    summary: ClassVar[str] = "longest cached prefix enters first, with a limit on overtaking; newest victim first"
    Settings: ClassVar[type[PluginSettings]] = PrefixSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"chunked_prefill"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(self, need: SchedulerNeed, settings: PrefixSettings, plugins: PluginRegistry) -> PrefixScheduler:
        """Build the scheduler."""
        from paged_sched_prefix.scheduler import PrefixScheduler

        return PrefixScheduler(need, settings)


@hookimpl
def paged_scheduler() -> PrefixProvider:
    """Register the scheduler."""
    return PrefixProvider()
