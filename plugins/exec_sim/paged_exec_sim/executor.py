"""SimExecutor: answers every draw and says how long a device that is not here would have taken."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.costs.choice import Server, device_called, find_cost
from paged_core.costs.transfers import Transfers
from paged_core.costs.work import work_of
from paged_core.errors import EngineDeadError
from paged_exec_sim.answers import Answers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.executor import ExecutorNeed
    from paged_exec_sim import SimSettings


news = logging.getLogger("paged_core.news")


class _Simulated(Ticket):
    """A step, its answer, and when it may be known."""

    __slots__ = ("due", "result")

    def __init__(self, plan: StepPlan, result: StepResult, due: float) -> None:
        super().__init__(plan)
        self.result = result
        self.due = due


class SimExecutor(Executor):
    """One step at a time. `elapsed_s` is the cost model's step plus what its copies and swaps take."""

    def __init__(self, need: ExecutorNeed, settings: SimSettings) -> None:
        self._server = Server(
            settings.model or need.model, need.spec, device_called(settings.device), settings.num_devices
        )
        self._cost = find_cost(settings.cost, self._server)
        self._block_size = need.block_size
        self._block_bytes = need.block_size * self._server.token_bytes()
        self._transfers = Transfers(
            block_bytes=self._block_bytes,
            chunks_per_block=2 * need.spec.num_layers,
            memory_bytes_per_s=self._server.device.bytes_per_s * settings.num_devices,
            call_s=settings.call_us * 1e-6,
            link_bytes_per_s=settings.link_gb_per_s * 1e9,
        )
        if "simulated" not in need.required:  # somebody expects answers
            news.info("exec_sim: no weights are read and the text is noise; %s", self._cost.describe())
        self._wait = settings.wait
        self._answers = Answers(need.max_rows, need.spec.vocab_size, need.eos_token_ids)
        self._started = False

    def capacity(self) -> KVCapacity:
        """The simulated device's pool, whatever memory this machine has; as many blocks again in host memory."""
        num_blocks = self._server.pool_tokens() // self._block_size
        return KVCapacity(num_blocks, num_blocks, self._block_bytes)

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """There are neither weights nor pools."""
        self._started = True

    def submit(self, plan: StepPlan) -> Ticket:
        """Answer the step's draws, and price it."""
        if not self._started:
            raise EngineDeadError("the executor is not started or was closed")
        work = work_of(plan)
        elapsed = self._cost.step_s(work) if work.num_tokens else 0.0
        if plan.swap_out or plan.swap_in:
            elapsed += self._transfers.swap_s(len(plan.swap_out)) + self._transfers.swap_s(len(plan.swap_in))
        if plan.copies:
            elapsed += self._transfers.copy_s(len(plan.copies))
        result = self._answers.to(plan, elapsed)
        return _Simulated(plan, result, time.monotonic() + elapsed if self._wait else 0.0)

    def collect(self, ticket: Ticket) -> StepResult:
        """The answers; with `wait` not before the device would have them."""
        assert isinstance(ticket, _Simulated)
        if self._wait and (left := ticket.due - time.monotonic()) > 0:
            time.sleep(left)
        return ticket.result

    def close(self) -> None:
        """Nothing is held."""
        self._started = False
