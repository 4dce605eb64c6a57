"""TwoInFlight: an ExecutorBench that submits a step before the one before was collected."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paged_conformance.benches.executor import NO_BLOCK, ExecutorBench, Moves, Running

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.executor import Ticket

UNKNOWN = -1
"""Stands for a token that a step in flight draws."""


class _Open(NamedTuple):
    plan: StepPlan
    ticket: Ticket
    drawing: list[Running]  # of each draw


class TwoInFlight:
    """Sequences run ahead of their tokens, as in an engine. Between submissions the tables hold nothing of use."""

    def __init__(self, bench: ExecutorBench) -> None:
        self.bench = bench
        self._open: deque[_Open] = deque()
        self.tables = bench.tables.copy()

    def submit(self, work: Mapping[Running, int], moves: Moves | None = None, ended: Sequence[int] = ()) -> StepPlan:
        """Submit a step; collect the older one first when two are in flight."""
        if len(self._open) == 2:
            self.collect()
        self.bench.tables[:] = self.tables
        plan = self.bench.plan(work, moves, ended)
        if self._open:
            _name_sources(plan, self._open[-1].plan)
        ticket = self.bench.executor.submit(plan)
        self.tables[:] = self.bench.tables
        self.bench.tables[:] = NO_BLOCK
        by_row = {running.row: running for running in work}
        drawing = [by_row[int(row)] for row in plan.sample_rows]
        for running, count in work.items():
            running.num_computed += count
            running.started = True
        for running in drawing:
            running.tokens.append(UNKNOWN)
        self._open.append(_Open(plan, ticket, drawing))
        return plan

    def collect(self) -> StepResult:
        """Collect the older step; its tokens take their places. A draw that failed leaves UNKNOWN."""
        plan, ticket, drawing = self._open.popleft()
        result = self.bench.executor.collect(ticket)
        assert result.step == plan.step, f"collect returned step {result.step} for the ticket of step {plan.step}"
        assert result.tokens.shape == (len(drawing), 1), f"tokens have shape {result.tokens.shape}"
        for i, running in enumerate(drawing):
            if result.num_tokens[i]:
                running.tokens[plan.sample_positions[i]] = int(result.tokens[i, 0])
        return result

    def decode(self, sequences: Sequence[Running], count: int) -> None:
        """Compute what is missing in one step, then decode, all together, `count` tokens in all."""
        for _ in range(count):
            self.submit({running: len(running.tokens) - running.num_computed for running in sequences})

    def finish(self) -> None:
        """Collect everything; the tables hold again."""
        while self._open:
            self.collect()
        self.bench.tables[:] = self.tables


def _name_sources(plan: StepPlan, before: StepPlan) -> None:
    draw_of = {int(row): draw for draw, row in enumerate(before.sample_rows)}
    rows = np.repeat(plan.rows, np.diff(plan.query_start)).tolist()
    unknown = plan.token_ids == UNKNOWN
    if unknown.any():
        source = [draw_of[row] if missing else -1 for row, missing in zip(rows, unknown, strict=True)]
        plan.token_source = np.array(source, dtype=np.int32)
        plan.token_ids = np.where(unknown, 0, plan.token_ids).astype(np.int32)
