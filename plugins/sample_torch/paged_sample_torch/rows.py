"""RowTable: the parameters of the running rows as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_sample_torch.draw import DrawParams
from paged_sample_torch.edits import RowEdits
from paged_sample_torch.uniform import stream_key, uniforms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.batch import RowStart
    from paged_core.api.sampler import SamplerNeed

NO_LOGPROBS = -1


class RowTable:
    """Parameters of the running rows as columns, indexed by table row; `edits` and `listed` tokens only for rows that
    have any."""

    def __init__(self, max_rows: int) -> None:
        self.started = np.zeros(max_rows, dtype=bool)
        self.greedy = np.zeros(max_rows, dtype=bool)
        self.edited = np.zeros(max_rows, dtype=bool)
        self.bare = np.zeros(max_rows, dtype=bool)  # started, and nothing but a draw is ever asked
        self.plain = np.zeros(max_rows, dtype=bool)  # that, and greedy
        self.prompt_len = np.zeros(max_rows, dtype=np.int64)
        self.min_tokens = np.zeros(max_rows, dtype=np.int64)
        self.num_logprobs = np.full(max_rows, NO_LOGPROBS, dtype=np.int64)
        self.key = np.zeros(max_rows, dtype=np.uint64)
        self.temperature = np.ones(max_rows, dtype=np.float64)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.top_p = np.ones(max_rows, dtype=np.float64)
        self.min_p = np.zeros(max_rows, dtype=np.float64)
        self.edits: dict[int, RowEdits] = {}
        self.listed: dict[int, tuple[int, ...]] = {}

    def start(self, start: RowStart, need: SamplerNeed) -> None:
        """Fill the columns of `start.row`, whatever was there before."""
        row, params = start.row, start.params
        edits = RowEdits(start, need.vocab_size, need.eos_token_ids)
        self.edits.pop(row, None)
        if edits.always or params.min_tokens:
            self.edits[row] = edits
        self.edited[row] = edits.always
        self.greedy[row] = params.greedy
        self.prompt_len[row] = len(start.prompt)
        self.min_tokens[row] = params.min_tokens
        self.num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.listed.pop(row, None)
        if params.logprob_token_ids is not None:
            self.num_logprobs[row] = 0
            self.listed[row] = tuple(params.logprob_token_ids)
        self.key[row] = stream_key(start.seed, start.branch)
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k if 0 < params.top_k < need.vocab_size else 0
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.started[row] = True
        self.bare[row] = row not in self.edits and self.num_logprobs[row] == NO_LOGPROBS
        self.plain[row] = params.greedy and self.bare[row]

    def end(self, row: int) -> None:
        """Forget `row`."""
        self.started[row] = self.bare[row] = self.plain[row] = False
        self.edits.pop(row, None)
        self.listed.pop(row, None)

    def draw_params(self, rows: NDArray[np.int32], positions: NDArray[np.int32]) -> DrawParams:
        """What the draws of `rows` at `positions` need."""
        return DrawParams(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            uniforms(self.key[rows], positions),
        )
