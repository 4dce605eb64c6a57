"""exec_local behind a queue of two steps, the same with one defect each, and what it makes for a GPU, on a fake one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.api.executor import Executor, ExecutorNeed, Ticket
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.testing.overlapped import Overlapped, OverlappedTicket

if TYPE_CHECKING:
    from paged_core.api.batch import StepPlan, StepResult


class ForgetsSources(Overlapped):
    """Computes the token that stands in the place of one that is not known."""

    def submit(self, plan: StepPlan) -> Ticket:
        ticket = super().submit(plan)
        ticket.plan = replace(plan, token_source=None)
        return ticket


class MixesSources(Overlapped):
    """Takes the first draw of the step before, whichever was named."""

    def submit(self, plan: StepPlan) -> Ticket:
        ticket = super().submit(plan)
        if plan.token_source is not None:
            ticket.plan = replace(plan, token_source=plan.token_source.clip(max=0))
        return ticket


class ReadsTablesLate(Overlapped):
    """Looks at the block tables when the step runs."""

    def collect(self, ticket: Ticket) -> StepResult:
        assert isinstance(ticket, OverlappedTicket)
        ticket.tables = self._tables.copy()
        return super().collect(ticket)


class StartsRowsEarly(Overlapped):
    """Ends and starts rows of the sampler at once, while the step before still has to draw."""

    def submit(self, plan: StepPlan) -> Ticket:
        ticket = super().submit(plan)
        sampler = self.inner._resident._runner._sampler  # type: ignore[attr-defined]
        for row in plan.ended:
            sampler.end(row)
        for start in plan.started:
            sampler.start(start)
        ticket.plan = replace(plan, started=[], ended=[])
        return ticket


class MovesEarly(Overlapped):
    """Moves blocks at once, while the step before still has to write them."""

    def submit(self, plan: StepPlan) -> Ticket:
        ticket = super().submit(plan)
        self.inner._resident._runner._move(plan)  # type: ignore[attr-defined]
        ticket.plan = replace(plan, copies=[], swap_out=[], swap_in=[])
        return ticket


def on_fake_device(need: ExecutorNeed, plugins: PluginRegistry) -> Executor:
    """exec_local as it is on a device with a queue of its own, captured steps and all."""
    from paged_exec_local.local import LocalExecutor

    from paged_core.testing.accelerator import FakeAccelerator
    from paged_core.testing.attention import DeviceAttention

    device, captured = FakeAccelerator(is_eager=True), frozenset({"graphs", "fused_rope"})
    executor = LocalExecutor(need, plugins, device)
    executor._resident._need = replace(need, attn_required=captured)
    executor._resident._attention = DeviceAttention(
        replace(executor._resident._attention_need, required=captured), device
    )
    return executor


class FlightProvider(Provider[ExecutorNeed, Executor]):
    """Offers one of them."""

    kind = "executor"
    api = 1
    priority = -1

    def __init__(self, name: str, overlapped: type[Overlapped] | None) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = overlapped.__doc__ or "" if overlapped else "exec_local on a fake device"  # type: ignore[misc]
        self._overlapped = overlapped

    def probe(self, need: ExecutorNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: ExecutorNeed, settings: PluginSettings, plugins: PluginRegistry) -> Any:
        if self._overlapped is None:
            return on_fake_device(need, plugins)
        return self._overlapped(plugins.create("executor", "exec_local", need), need.block_size)


QUEUES: dict[str, type[Overlapped] | None] = {
    "exec_overlapped": Overlapped,
    "exec_on_fake_device": None,
    "exec_forgets_sources": ForgetsSources,
    "exec_mixes_sources": MixesSources,
    "exec_reads_tables_late": ReadsTablesLate,
    "exec_starts_rows_early": StartsRowsEarly,
    "exec_moves_early": MovesEarly,
}


@hookimpl
def paged_executor() -> list[FlightProvider]:
    return [FlightProvider(name, overlapped) for name, overlapped in QUEUES.items()]
