"""Divergence: where beams part when a model's log-probabilities are drawn at random from measured ones.

A beam search on a model that costs nothing: each step every beam gets the sorted log-probabilities of some position of
real answers. Sibling beams draw independently, although they read nearly the same text: `bench sharing` holds the
memory that such beams save against that of real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepPlan, TopLogprobs
from paged_core.bench.stub import StubExecutor, StubTicket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from paged_core.api.executor import Ticket
    from paged_core.api.output import RequestOutput


def sorted_logprobs(outputs: Sequence[RequestOutput], k: int) -> NDArray[np.float32]:
    """float32 [positions, k], best first, from answers that recorded at least `k` tokens a position."""
    return np.array(
        [
            sorted((one.logprob for one in position.values()), reverse=True)[:k]
            for output in outputs
            for position in output.outputs[0].logprobs or ()
        ],
        dtype=np.float32,
    )


class BeamStub(StubExecutor):
    """Candidates for beams from rows of `logprobs` (float32 [positions, k], best first); other draws get one token."""

    def __init__(
        self, logprobs: NDArray[np.float32], seed: int, cost: Callable[[StepPlan], float] | None = None
    ) -> None:
        super().__init__(cost)
        self._logprobs = logprobs
        self._random = np.random.default_rng(seed)

    def submit(self, plan: StepPlan) -> Ticket:
        """Every draw at once."""
        ticket = super().submit(plan)
        assert isinstance(ticket, StubTicket)
        if plan.num_candidates is not None:
            draws = np.flatnonzero(plan.num_candidates)
            positions = self._random.integers(0, len(self._logprobs), len(draws))
            for draw, position in zip(draws.tolist(), positions.tolist(), strict=True):
                logprobs = self._logprobs[position : position + 1, : plan.num_candidates[draw]]
                tokens = np.arange(logprobs.shape[1], dtype=np.int32)[None]
                ticket.result.candidates[draw] = TopLogprobs(logprobs[:, 0], np.ones(1, np.int32), tokens, logprobs)
        return ticket
