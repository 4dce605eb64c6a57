"""A scheduler that serves one request at a time, in order of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from paged_core import hookimpl
from paged_core.api.provider import Fit, PluginSettings, Provider
from paged_core.api.scheduler import Decision, Run, Scheduler, SchedulerNeed

if TYPE_CHECKING:
    from paged_core.api.provider import PluginRegistry
    from paged_core.api.scheduler import View


class OneSettings(PluginSettings):
    """The settings table `[plugins.sched_one]`."""

    chunk: int = Field(512, ge=1, description="Most prompt tokens computed in one step.")


class OneAtATime(Scheduler):
    """Runs the oldest group until it ends; newcomers wait."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    def decide(self, view: View) -> Decision:
        """The group that runs, or else the first that waits, gets as many tokens as budget and pool allow."""
        group = next(iter(view.running), None) or next(iter(view.waiting), None)
        if group is None:
            return Decision()
        if group in view.running and group not in view.prefilling:
            return Decision(decode_all=True) if view.scratch.take_decodes() else Decision()
        num_tokens = min(view.scratch.gap(group), view.token_budget, self._chunk)
        return Decision(run=[Run(group, num_tokens)]) if view.scratch.take(group, num_tokens) else Decision()


class OneProvider(Provider[SchedulerNeed, Scheduler]):
    """Describes the scheduler; importing it loads nothing heavy."""

    name = "sched_one"
    kind = "sched"
    api = 1
    priority = -100
    summary = "one request at a time, in order of arrival"
    Settings = OneSettings
    capabilities = frozenset({"fcfs", "chunked_prefill"})

    def probe(self, need: SchedulerNeed) -> Fit:
        """Splits prompts, so it does not serve an engine that wants them whole."""
        reasons = self.missing_capabilities(need.required)
        if not need.chunked_prefill:
            reasons.append("it always splits long prompts, and chunked_prefill is off")
        return Fit.judge(reasons, ["turn chunked_prefill on"])

    def create(self, need: SchedulerNeed, settings: OneSettings, plugins: PluginRegistry) -> Scheduler:
        """A scheduler of its own for each engine."""
        return OneAtATime(settings.chunk)


@hookimpl
def paged_scheduler() -> OneProvider:
    """Offer the one provider."""
    return OneProvider()
