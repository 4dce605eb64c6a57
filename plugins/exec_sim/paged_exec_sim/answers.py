"""Answers: what a simulated model draws. Noise, but the same noise whenever the same request is simulated.

A token, a log-probability or a beam's candidates depend on (seed, branch, position) alone. No draw is an end token
before the request's true length, and the draw that reaches it is one; without a true length none ever is.

Log-probabilities follow Zipf's law with an exponent of each draw's own (`noise.log_probabilities`). Beams draw theirs
independently: beams of a real model whose log-probabilities are drawn so from measured ones share within 3.5 points as
much memory as when that model computes them (docs/performance.md, sharing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepResult, TopLogprobs
from paged_exec_sim.noise import log_probabilities, numbers_at, words_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from paged_core.api.batch import RowStart, StepPlan
    from paged_core.api.params import SamplingParams

_NEVER = np.iinfo(np.int32).max
_IMPOSSIBLE = -1e9
"""Log-probability of going on where the true length is reached: finite, so that sums of it stay comparable."""


class Answers:
    """Columns over table rows: the seed of a row's draws, and the length at which its end token comes."""

    def __init__(self, max_rows: int, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._seeds = np.zeros(max_rows, dtype=np.uint64)
        self._ends = np.full(max_rows, _NEVER, dtype=np.int32)
        self._logprobs: dict[int, int] = {}  # row -> how many of the best it asks for besides the drawn one
        self._refused: dict[int, str] = {}  # row -> why nothing can be drawn for it
        self._eos = sorted(set(eos_token_ids))
        self._num_tokens = vocab_size - len(self._eos)

    def to(self, plan: StepPlan, elapsed_s: float) -> StepResult:
        """The step's result."""
        for row in plan.ended:
            self._end(row)
        for start in plan.started:
            self._start(start)
        rows, positions = plan.sample_rows, plan.sample_positions
        seeds = self._seeds[rows]
        tokens = self._passing_ends(numbers_at(seeds, positions, self._num_tokens))
        ending = positions >= self._ends[rows]
        if self._eos:
            tokens[ending] = self._eos[0]
        result = StepResult(plan.step, tokens[:, None], np.ones(len(rows), dtype=np.int32), elapsed_s)
        if self._logprobs:
            self._add_logprobs(plan, words_at(seeds, positions), result)
        if plan.num_candidates is not None:
            self._add_candidates(plan, words_at(seeds, positions), ending, result)
        if self._refused:
            self._refuse(plan, result)
        for want in plan.prompt_rows:
            at = want.first_position + np.arange(len(want.targets), dtype=np.int32)
            top = self._top(words_at(self._seeds[want.row], at), want.targets, want.num_logprobs)
            result.prompt_logprobs[want.row] = (want.first_position, top)
        return result

    # -- rows -----------------------------------------------------------------------------------------------------

    def _start(self, start: RowStart) -> None:
        row, params, length = start.row, start.params, start.true_output_len
        self._end(row)
        self._seeds[row] = np.uint64((start.seed + start.branch) & 0xFFFFFFFFFFFFFFFF)
        self._ends[row] = _NEVER if length is None else len(start.prompt) + length - 1
        if params.logprobs is not None:
            self._logprobs[row] = params.logprobs
        if reason := _what_needs_logits(params):
            self._refused[row] = f"exec_sim computes no logits, which {reason} needs"

    def _end(self, row: int) -> None:
        self._logprobs.pop(row, None)
        self._refused.pop(row, None)

    # -- draws ----------------------------------------------------------------------------------------------------

    def _passing_ends(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """The n-th tokens of those that end nothing."""
        for end in self._eos:
            numbers += numbers >= end
        return numbers

    def _add_candidates(
        self, plan: StepPlan, words: NDArray[np.uint64], ending: NDArray[np.bool_], result: StepResult
    ) -> None:
        """The best tokens of every draw of a beam, the drawn one first: most beams go on with that, and a row that does
        need not be started anew. Where the beam ends, an end token has all the probability."""
        assert plan.num_candidates is not None
        draws = np.flatnonzero(plan.num_candidates)
        if not len(draws):
            return  # beams that are computed again, none of which is done yet
        most = min(int(plan.num_candidates[draws].max()), self._num_tokens)
        seeds, positions = self._seeds[plan.sample_rows[draws]], plan.sample_positions[draws]
        first = numbers_at(seeds, positions, self._num_tokens)[:, None]
        numbers = (first + np.arange(most, dtype=np.int32)) % self._num_tokens
        tokens = self._passing_ends(numbers.astype(np.int32))
        logprobs = log_probabilities(words[draws], most, self._num_tokens)
        if self._eos:
            ends = ending[draws]
            logprobs[ends, 0], logprobs[ends, 1:], tokens[ends, 0] = 0.0, _IMPOSSIBLE, self._eos[0]
        best = np.ones(1, dtype=np.int32)
        for i, draw in enumerate(draws.tolist()):
            count = int(plan.num_candidates[draw])
            mine = logprobs[i : i + 1, :count]
            result.candidates[draw] = TopLogprobs(mine[:, 0], best, tokens[i : i + 1, :count], mine)

    def _add_logprobs(self, plan: StepPlan, words: NDArray[np.uint64], result: StepResult) -> None:
        for draw, row in enumerate(plan.sample_rows.tolist()):
            if (count := self._logprobs.get(row)) is not None:
                one = slice(draw, draw + 1)
                result.logprobs[draw] = self._top(words[one], result.tokens[one, 0], count)

    def _top(self, words: NDArray[np.uint64], chosen: NDArray[np.int32], count: int) -> TopLogprobs:
        """Of each word's distribution: `chosen` has the rank that its probability gives it, others follow its id."""
        width = min(max(count, 8), self._num_tokens)
        logprobs = log_probabilities(words, width, self._num_tokens)
        spot = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        ranks = np.minimum((np.cumsum(np.exp(logprobs), axis=1) < spot[:, None]).sum(axis=1), width - 1)
        vocabulary = self._num_tokens + len(self._eos)
        ids = (chosen[:, None] + 1 + np.arange(width, dtype=np.int32)) % vocabulary
        rows = np.arange(len(words))
        ids[rows, ranks] = chosen
        return TopLogprobs(
            logprobs[rows, ranks],
            (ranks + 1).astype(np.int32),
            ids[:, :count].astype(np.int32),
            logprobs[:, :count],
        )

    def _refuse(self, plan: StepPlan, result: StepResult) -> None:
        for draw, row in enumerate(plan.sample_rows.tolist()):
            if row in self._refused:
                result.failed[row] = self._refused[row]
                result.num_tokens[draw] = 0


def _what_needs_logits(params: SamplingParams) -> str:
    """The parameter that prescribes or forbids tokens, if there is one: noise cannot heed it."""
    asked = {
        "structured_outputs": params.structured_outputs,
        "logits_processors": params.logits_processors,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_words": params.bad_words_token_ids,
        "logprob_token_ids": params.logprob_token_ids,
    }
    return next((name for name, value in asked.items() if value), "")
