"""Answers: what a simulated model draws. Noise, but the same noise whenever the same request is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepResult, TopLogprobs
from paged_exec_sim.noise import uniforms, words_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from paged_core.api.batch import RowStart, StepPlan

_NEVER = np.iinfo(np.int32).max


class Answers:
    """Columns over table rows: the seed of a row's draws, and the length at which its end token comes."""

    def __init__(self, max_rows: int, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._seeds = np.zeros(max_rows, dtype=np.uint64)
        self._ends = np.full(max_rows, _NEVER, dtype=np.int32)
        self._ends_set = 0  # rows whose end is known
        self._eos = sorted(set(eos_token_ids))
        self._num_tokens = np.uint64(vocab_size - len(self._eos))

    def to(self, plan: StepPlan, elapsed_s: float) -> StepResult:
        """The step's result."""
        for start in plan.started:
            self._start(start)
        rows, positions = plan.sample_rows, plan.sample_positions
        words = words_at(self._seeds[rows], positions)
        tokens = (words % self._num_tokens).astype(np.int32)
        for end in self._eos:
            tokens += tokens >= end
        if self._eos:
            tokens[positions + 1 >= self._ends[rows]] = self._eos[0]
        result = StepResult(plan.step, tokens[:, None], np.ones(len(rows), dtype=np.int32), elapsed_s)
        return result

    def _start(self, start: RowStart) -> None:
        self._seeds[start.row] = np.uint64((start.seed ^ (start.branch * 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF)
        length = start.true_output_len
        self._ends[start.row] = _NEVER if length is None else len(start.prompt) + length
