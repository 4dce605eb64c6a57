"""ShadowLogits: the shadow executor with a real sampler, and hence with everything that a sampler does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepPlan, StepResult
from paged_core.testing.shadow import ShadowExecutor, ShadowTicket

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.batch import RowStart
    from paged_core.api.executor import Ticket
    from paged_core.api.sampler import Sampler

_SPREAD = 6.0
"""Logits lie in 0..6, in 2**24 steps: draws differ from sequence to sequence, and the best two do not tie."""


class ShadowLogits(ShadowExecutor):
    """Logits, not tokens, are the hash of what a draw reads through the block table; `sampler` draws from them.

    Grammars, penalties, filters, seeds and beam candidates are therefore the sampler's own.
    """

    def __init__(self, block_size: int, sampler: Sampler, vocab_size: int = 320, step_s: float = 0.001) -> None:
        super().__init__(block_size, step_s=step_s)
        self._sampler, self._vocab_size = sampler, vocab_size

    def submit(self, plan: StepPlan) -> Ticket:
        """Rows end and begin in the sampler first, as the contract has it."""
        for row in plan.ended:
            self._sampler.end(row)
        for start in plan.started:
            self._sampler.start(start)
        ticket = super().submit(plan)
        self._score(plan, ticket)
        return ticket

    def _score(self, plan: StepPlan, ticket: Ticket) -> None:
        """Log-probabilities of prompt tokens, each by the tokens before it."""
        import torch

        assert isinstance(ticket, ShadowTicket)
        for want in plan.prompt_rows:
            lengths = range(want.first_position, want.first_position + len(want.targets))
            logits = torch.from_numpy(self._logits([self._read(want.row, length, b"") for length in lengths]))
            top = self._sampler.logprobs(logits, want.targets, want.num_logprobs)
            ticket.result.prompt_logprobs[want.row] = (want.first_position, top)

    def _salt(self, start: RowStart) -> bytes:
        """None: seeds are the sampler's matter."""
        return b""

    def _drawn(self, plan: StepPlan, digests: list[bytes]) -> StepResult:
        import torch

        from paged_core.model.runner import draw

        result = StepResult(plan.step, np.zeros((0, 1), np.int32), np.zeros(0, np.int32), self._step_s)
        if digests:
            draw(self._sampler, torch.from_numpy(self._logits(digests)), plan, result)
        return result

    def _logits(self, digests: list[bytes]) -> NDArray[np.float32]:
        """[draws, vocab]: splitmix64 of digest and token id."""
        seeds = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 1)
        mixed = seeds + np.arange(1, self._vocab_size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        logits: NDArray[np.float32] = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(_SPREAD / (1 << 24))
        return logits
