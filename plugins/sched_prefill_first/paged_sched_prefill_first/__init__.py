"""sched_prefill_first: a step is prompts or decodes, prompts first; vLLM as its paper describes and measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.scheduling.limits import reasons_against

if TYPE_CHECKING:
    from paged_sched_prefill_first.scheduler import PrefillFirstScheduler

__all__ = ["PrefillFirstProvider", "PrefillFirstSettings", "paged_scheduler"]


class PrefillFirstSettings(PluginSettings):
    """Settings of sched_prefill_first."""

    watermark: float = Field(0.01, ge=0.0, lt=1.0, description="share of the pool that admissions leave free")


class PrefillFirstProvider(Provider[SchedulerNeed, Scheduler]):
    """Offers `PrefillFirstScheduler`."""

    name: ClassVar[str] = "sched_prefill_first"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 40
    summary: ClassVar[str] = "vLLM 2023: whole prompts in steps of their own before decodes; newest victim first"
    Settings: ClassVar[type[PluginSettings]] = PrefillFirstSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"fcfs"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Fits wherever at least one token and one sequence may run."""
        return Fit.judge(self.missing_capabilities(need.required) + reasons_against(need))

    def create(
        self, need: SchedulerNeed, settings: PrefillFirstSettings, plugins: PluginRegistry
    ) -> PrefillFirstScheduler:
        """Build the scheduler."""
        from paged_sched_prefill_first.scheduler import PrefillFirstScheduler

        return PrefillFirstScheduler(need, settings.watermark)


@hookimpl
def paged_scheduler() -> PrefillFirstProvider:
    """Register the scheduler."""
    return PrefillFirstProvider()
