"""Recorder: fills the columns of an Outcome while an engine runs. A few column operations a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.sim.outcome import Requests, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from paged_core.api.allocator import BlockStats
    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.clock import Clock
    from paged_core.api.output import RequestMetrics, RequestOutput
    from paged_core.engine.ledger import Ledger
    from paged_core.workload.traces import Arrival

_COLUMNS = tuple(Steps.__dataclass_fields__)
_SECONDS = 2  # the first columns are times, all others counts


class StepRecorder:
    """An engine's watcher (`Engine.observe`). `block_size` in slots, `num_blocks` those of the pool."""

    def __init__(self, clock: Clock, rows: int, block_size: int) -> None:
        self._clock = clock
        self._block_size = block_size
        self._times = np.zeros((1024, _SECONDS))
        self._counts = np.zeros((1024, len(_COLUMNS) - _SECONDS), dtype=np.int64)
        self._final = np.zeros(rows, dtype=np.int64)  # length at which the row's sequence ends
        self._num_steps = 0

    def __call__(self, plan: StepPlan, result: StepResult, ledger: Ledger, blocks: BlockStats) -> None:
        """Enter one committed step."""
        queues = ledger.queues
        for start in plan.started:
            output = start.true_output_len
            assert output is not None
            self._final[start.row] = len(start.prompt) + output
        i = self._num_steps
        if i == len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        num_tokens, num_seqs = plan.num_tokens, len(plan.rows)
        decodes = num_seqs if num_tokens == num_seqs else int((np.diff(plan.query_start) == 1).sum())
        rows = queues.decode_rows
        if queues.prefilling:
            others = [seq.row for group in queues.prefilling.values() for seq in group.live]
            rows = np.concatenate([rows, np.array(others, dtype=np.int32)])
        used = blocks.used * self._block_size
        reserved, internal = self._ahead(rows, ledger)
        self._times[i] = (self._clock.now() - result.elapsed_s, result.elapsed_s)
        self._counts[i] = (
            len(queues.running) + len(queues.leaving),
            len(rows),
            len(queues.waiting),
            len(queues.preempted),
            num_tokens - decodes,
            decodes,
            used,
            used - blocks.tail_waste_slots,
            reserved,
            internal,
            blocks.total * self._block_size,
            blocks.saved,
        )
        self._num_steps += 1

    def _ahead(self, rows: NDArray[np.int32], ledger: Ledger) -> tuple[int, int]:
        """Slots that `rows` hold beyond their tokens: those they will fill, and those they never will."""
        computed = ledger.rows.num_computed[rows]
        held = ledger.allocator.held_slots(rows, computed)
        useful = np.minimum(held, np.maximum(self._final[rows], computed))
        total = int(np.add.reduce(useful))  # half the price of `sum`, which comes here by way of Python
        return total - int(np.add.reduce(computed)), int(np.add.reduce(held)) - total

    def steps(self) -> Steps:
        """The columns so far."""
        n = self._num_steps
        columns = [*self._times[:n].T.copy(), *self._counts[:n].T.copy()]
        return Steps(**dict(zip(_COLUMNS, columns, strict=True)))


class RequestRecorder:
    """Columns of requests, from what the engine puts out."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        n = len(arrivals)
        self._arrivals = arrivals
        self._first = np.full(n, np.nan)
        self._finish = np.full(n, np.nan)
        self._counts = np.zeros((n, 3), dtype=np.int64)  # generated, preemptions, cached
        self._rejected = np.zeros(n, dtype=bool)
        self._cut = np.zeros(n, dtype=bool)
        self.reasons: dict[str, int] = {}

    def finished(self, output: RequestOutput) -> None:
        """A request has ended."""
        metrics = self.stopped(output)
        i = int(output.request_id)
        assert metrics.finished_time is not None
        self._finish[i] = metrics.finished_time
        if metrics.longest_output < self._arrivals[i].output_tokens:
            self._cut[i] = True
            self._count(output.error or "the model's longest sequence")

    def stopped(self, output: RequestOutput) -> RequestMetrics:
        """A request was taken away before its end, as far as it had come."""
        i, metrics = int(output.request_id), output.metrics
        assert metrics is not None
        if metrics.first_token_time is not None:
            self._first[i] = metrics.first_token_time
        self._counts[i] = (metrics.num_generation_tokens, metrics.num_preemptions, metrics.num_cached_tokens)
        return metrics

    def rejected(self, i: int, reason: str) -> None:
        """Request `i` can never run."""
        self._rejected[i] = True
        self._count(reason)

    def requests(self) -> Requests:
        """The columns so far."""
        rows = self._arrivals
        generated, preemptions, cached = self._counts.T.copy()
        return Requests(
            arrival_s=np.array([row.at_s for row in rows], dtype=np.float64),
            first_token_s=self._first,
            finish_s=self._finish,
            prompt_tokens=np.array([row.prompt_tokens for row in rows], dtype=np.int64),
            output_tokens=np.array([row.output_tokens for row in rows], dtype=np.int64),
            generated_tokens=generated,
            num_preemptions=preemptions,
            cached_tokens=cached,
            rejected=self._rejected,
            cut=self._cut,
            client=np.array([row.client for row in rows], dtype=np.str_),
        )

    def _count(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
