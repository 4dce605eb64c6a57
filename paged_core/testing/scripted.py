"""Executors that say what a test tells them to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.batch import StepPlan, StepResult
from paged_core.api.executor import Executor, KVCapacity, Ticket
from paged_core.testing.shadow import ShadowTicket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from paged_core.api.sampler import Sampler


class _PromptLengths:
    """Prompt length by row, from the plans' row starts."""

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}

    def update(self, plan: StepPlan) -> None:
        for start in plan.started:
            self._lengths[start.row] = len(start.prompt)

    def output_index(self, row: int, position: int) -> int:
        return position - self._lengths[row]


class ScriptedExecutor(Executor):
    """Greedy decoding emits `script` (token ids) whatever the prompt, then `then` for ever (EOS by default)."""

    def __init__(self, script: Sequence[int], then: int = 256) -> None:
        self._script = list(script)
        self._then = then
        self._prompts = _PromptLengths()

    def capacity(self) -> KVCapacity:
        """Not limited."""
        return KVCapacity(1 << 20, 1 << 20, 1)

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Nothing to allocate."""

    def submit(self, plan: StepPlan) -> Ticket:
        """The next piece for every draw."""
        self._prompts.update(plan)
        tokens = []
        for row, position in zip(plan.sample_rows, plan.sample_positions, strict=True):
            i = self._prompts.output_index(int(row), int(position))
            tokens.append(self._script[i] if i < len(self._script) else self._then)
        array = np.array(tokens, dtype=np.int32).reshape(-1, 1)
        return ShadowTicket(plan, StepResult(plan.step, array, np.ones(len(array), dtype=np.int32), 0.001))

    def collect(self, ticket: Ticket) -> StepResult:
        """The result of `submit`."""
        assert isinstance(ticket, ShadowTicket)
        return ticket.result

    def close(self) -> None:
        """Nothing to release."""


class TableExecutor(ScriptedExecutor):
    """Logits come from `table(output_index) -> [vocab]`; a real sampler draws from them.

    Prompt log-probabilities use `table(-1)`.
    """

    def __init__(self, table: Callable[[int], Any], sampler: Sampler) -> None:
        super().__init__(())
        self._table = table
        self._sampler = sampler

    def submit(self, plan: StepPlan) -> Ticket:
        """Sample every draw of the step in one batch."""
        import torch

        from paged_core.model.runner import draw

        self._prompts.update(plan)
        for row in plan.ended:
            self._sampler.end(row)
        for start in plan.started:
            self._sampler.start(start)
        result = StepResult(plan.step, np.zeros((0, 1), np.int32), np.zeros(0, np.int32), 0.001)
        if len(plan.sample_rows):
            indices = map(self._prompts.output_index, plan.sample_rows.tolist(), plan.sample_positions.tolist())
            logits = torch.stack([torch.as_tensor(self._table(i), dtype=torch.float32) for i in indices])
            draw(self._sampler, logits, plan, result)
        for want in plan.prompt_rows:
            rows = [torch.as_tensor(self._table(-1), dtype=torch.float32) for _ in want.targets]
            top = self._sampler.logprobs(torch.stack(rows), want.targets, want.num_logprobs)
            result.prompt_logprobs[want.row] = (want.first_position, top)
        return ShadowTicket(plan, result)
