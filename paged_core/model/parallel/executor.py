"""ParallelExecutor: a model shared by the ranks of a group of worker processes, however those are started and reached.

capacity   workers start, load their plugins and say how many blocks fit: the least of them counts
start      workers meet, each loads its part of the weights
submit     one message, the same bytes for every rank;  collect: rank 0's result
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.errors import EngineDeadError
from paged_core.model.parallel.fleet import Fleet, Limits
from paged_core.model.parallel.message import StepWriter
from paged_core.model.parallel.orders import Muster, Report, Start, TakeSpans, Timed
from paged_core.model.parallel.sampling_state import check_travels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.executor import ExecutorNeed, Span
    from paged_core.api.params import SamplingParams
    from paged_core.api.provider import PluginRegistry
    from paged_core.model.parallel.transport import Transport

_LOGGERS = ("paged_core", "paged_core.news")


class Traffic(NamedTuple):
    """Bytes of all steps' messages to one rank; how often rank 0 has met the others, and the seconds of that, waiting
    included."""

    sent_bytes: int
    num_meetings: int
    meeting_s: float


class ParallelExecutor(Executor):
    """`launch` starts the workers, once capacity is asked for. One step at a time: ranks other than 0 would not know
    the tokens of a step that is still in flight."""

    def __init__(
        self, need: ExecutorNeed, plugins: PluginRegistry, launch: Callable[[], Transport], limits: Limits
    ) -> None:
        self._need, self._plugins, self._limits = need, plugins, limits
        self._launch = launch
        self._transport: Transport | None = None
        self._fleet: Fleet | None = None
        self._reports: list[Report] = []
        self._writer: StepWriter | None = None
        self._sent_bytes = 0

    def capacity(self) -> KVCapacity:
        """What the rank with the least room has; bytes of all ranks. Raises what keeps a worker from starting."""
        if self._fleet is None:
            self._transport = self._launch()
            self._fleet = Fleet(self._transport, self._limits)
        if not self._reports:
            self._reports = self._fleet.ask(self._muster(), "while starting")
        return least(self._reports)

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Every rank loads its weights and allocates its part of both pools. Raises what the first failing one does."""
        self.capacity()
        assert self._fleet is not None
        assert self._transport is not None
        rows, width = tables.shape
        port, host = self._reports[0].port, self._transport.host
        order = Start(num_blocks, num_host_blocks, (rows, width), host, port, self._limits.start_s)
        self._fleet.ask(order, "while loading the model")
        self._writer = StepWriter(tables)

    def _muster(self) -> Muster:
        recipe, need = self._plugins.recipe(), self._need
        versions = {name: recipe.versions.get(name, "") for name in (need.loader, need.attn, need.sampler)}
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        return Muster(need, recipe.settings, versions, levels)

    def submit(self, plan: StepPlan) -> Ticket:
        """Send the step to every rank."""
        if self._fleet is None or self._writer is None:
            raise EngineDeadError("the executor is not started or was closed")
        message = self._writer.write(plan)
        self._sent_bytes += len(message)
        self._fleet.step(message, plan.step)
        return Ticket(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for rank 0's result, and for bad news of any rank."""
        if self._fleet is None:
            raise EngineDeadError("the executor is not started or was closed")
        return self._fleet.result(ticket.plan.step)

    def check(self, params: SamplingParams) -> None:
        """Logits processors must reach the process that samples."""
        if params.logits_processors:
            check_travels(params)

    def check_health(self) -> None:
        """Whether a rank has left while it had nothing to do."""
        if self._fleet is not None:
            self._fleet.look()

    def processes(self) -> tuple[int, ...]:
        """The workers' that run on this machine."""
        return () if self._fleet is None else self._fleet.processes()

    def spans(self) -> list[Span]:
        """Of rank 0."""
        if self._fleet is None or not self._need.profile or not self._fleet.is_alive:
            return []
        return self._timed().spans

    def traffic(self) -> Traffic:
        """What sharing the model has cost so far."""
        timed = self._timed()
        return Traffic(self._sent_bytes, timed.num_meetings, timed.meeting_s)

    def _timed(self) -> Timed:
        if self._fleet is None:
            raise EngineDeadError("the executor is not started or was closed")
        timed: Timed = self._fleet.ask(TakeSpans(), "while telling times")[0]
        return timed

    def close(self) -> None:
        """End the workers."""
        if self._fleet is not None:
            self._fleet.close()


def least(reports: Sequence[Report]) -> KVCapacity:
    """What all ranks have room for."""
    return KVCapacity(
        num_blocks=min(report.num_blocks for report in reports),
        num_host_blocks=min(report.num_host_blocks for report in reports),
        block_bytes=sum(report.block_bytes for report in reports),
        num_ranks=len(reports),
    )
