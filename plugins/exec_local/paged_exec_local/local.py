"""LocalExecutor: the whole model in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.executor import Executor, ExecutorNeed, KVCapacity, Span, Ticket
from paged_core.model.resident import Resident

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.provider import PluginRegistry
    from paged_core.device.stream import Accelerator
    from paged_core.model.resident import Begun


class _Running(Ticket):
    """A step that has run, or that a device has in its queue."""

    __slots__ = ("begun",)

    def __init__(self, plan: StepPlan, begun: Begun) -> None:
        super().__init__(plan)
        self.begun = begun


class LocalExecutor(Executor):
    """On a CPU a plan runs when it is submitted, and `collect` hands over the result. A device with a queue of its own
    (an accelerator; by default what the need's device is) is given two plans at a time, and `collect` waits for one."""

    def __init__(self, need: ExecutorNeed, plugins: PluginRegistry, accelerator: Accelerator | None = None) -> None:
        self._resident = Resident(need, plugins, accelerator=accelerator)
        self.max_in_flight = 1 if self._resident.accelerator is None else 2

    def capacity(self) -> KVCapacity:
        """Both pools, from the backend's bytes per block."""
        return self._resident.capacity()

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Load the weights and allocate both pools. Raises ConfigError where a GPU has too little memory for them."""
        self._resident.start(num_blocks, num_host_blocks, tables)

    def submit(self, plan: StepPlan) -> Ticket:
        """Run the step now, or give it to the device."""
        return _Running(plan, self._resident.submit(plan))

    def collect(self, ticket: Ticket) -> StepResult:
        """The step's result; waits for a device."""
        assert isinstance(ticket, _Running)
        return self._resident.collect(ticket.begun)

    def spans(self) -> list[Span]:
        """Parts of the steps since the last call."""
        return self._resident.spans()

    def close(self) -> None:
        """Drop weights and pools, once the device is done with them."""
        self._resident.close()
