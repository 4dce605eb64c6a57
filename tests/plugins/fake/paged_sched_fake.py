"""A plugin that is installed for the tests by its dist-info folder alone. Its scheduler never schedules anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core import hookimpl
from paged_core.api.provider import Fit, Provider
from paged_core.api.scheduler import Decision, Scheduler, SchedulerNeed

if TYPE_CHECKING:
    from paged_core.api.provider import PluginRegistry
    from paged_core.api.scheduler import View


class Idle(Scheduler):
    def decide(self, view: View) -> Decision:
        return Decision()


class IdleProvider(Provider[SchedulerNeed, Scheduler]):
    name = "sched_fake"
    kind = "sched"
    api = 1
    summary = "schedules nothing"

    def probe(self, need: SchedulerNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: SchedulerNeed, settings: Any, plugins: PluginRegistry) -> Scheduler:
        return Idle()


@hookimpl
def paged_scheduler() -> IdleProvider:
    return IdleProvider()
