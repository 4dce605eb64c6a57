"""Lasting: one started executor for several engines, one after the other. Starting worker processes takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.engine.assemble import assemble

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.params import SamplingParams
    from paged_core.engine.engine import Engine
    from paged_core.plugins import Plugins
    from paged_core.settings import Settings


class Lasting(Executor):
    """Wraps `inner`, which the first engine starts; later ones may have fewer blocks, but as many and as wide tables.
    `close` leaves it as it is, `end` closes it."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self._kept: NDArray[np.int32] | None = None
        self._tables: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self._num_blocks = (0, 0)

    def capacity(self) -> KVCapacity:
        """Passed on."""
        return self.inner.capacity()

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """The first call is passed on."""
        self._tables = tables
        if self._kept is None:
            self._kept = tables.copy()
            self._num_blocks = num_blocks, num_host_blocks
            self.inner.start(num_blocks, num_host_blocks, self._kept)
        assert self._kept.shape == tables.shape
        assert num_blocks <= self._num_blocks[0]
        assert num_host_blocks <= self._num_blocks[1]

    def submit(self, plan: StepPlan) -> Ticket:
        """Passed on, with the tables of the engine that there is."""
        assert self._kept is not None
        self._kept[plan.changed_rows] = self._tables[plan.changed_rows]
        return self.inner.submit(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        """Passed on."""
        return self.inner.collect(ticket)

    def check(self, params: SamplingParams) -> None:
        """Passed on."""
        self.inner.check(params)

    def check_health(self) -> None:
        """Passed on."""
        self.inner.check_health()

    def processes(self) -> tuple[int, ...]:
        """Passed on."""
        return self.inner.processes()

    def close(self) -> None:
        """An engine ends; the next may come."""

    def end(self) -> None:
        """Close the wrapped executor."""
        self.inner.close()


class Lender:
    """A plugin registry that hands out one executor again and again, whatever it is asked for."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.lasting: Lasting | None = None

    def create(self, kind: str, name: str, need: Any) -> Any:
        """As the registry, which makes the first executor."""
        if kind != "executor":
            return self._plugins.create(kind, name, need)
        if self.lasting is None:
            self.lasting = Lasting(self._plugins.create(kind, name, need))
        return self.lasting

    def engine(self, settings: Settings) -> Engine:
        """An engine over the one executor. Close it before the next."""
        return assemble(settings, self).engine  # type: ignore[arg-type]

    def end(self) -> None:
        """Close the executor, if there ever was one."""
        if self.lasting is not None:
            self.lasting.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugins, name)
