"""What changes a row's logits before anything is chosen: allowed tokens, bad words, min_tokens, bias, penalties.

Only rows that use one of these have a RowEdits, and only the few tokens they name are touched: no dense mask or count
matrix exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.device.upload import beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.batch import RowStart


class TokenCounts:
    """How often each token of a sequence occurs in its output; tokens seen in the prompt alone count 0."""

    def __init__(self, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        in_output, occurrences = np.unique(output, return_counts=True)
        seen = np.union1d(in_output, prompt)
        self._ids = seen.astype(np.int64)
        self._counts = np.zeros(len(seen), dtype=np.float32)
        self._counts[np.searchsorted(seen, in_output)] = occurrences
        self._index = {token: i for i, token in enumerate(seen.tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens, in no order."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Their occurrences in the output, in the order of `ids`."""
        return self._counts[: len(self._index)]

    def add(self, token: int) -> None:
        """Count one more token of the output."""
        index = self._index.setdefault(token, len(self._index))
        if index == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros(index + 64, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(index + 64, dtype=np.float32)))
        self._ids[index] = token
        self._counts[index] += 1


class RowEdits:
    """The edits of one row. Token ids outside the vocabulary are dropped: what cannot be sampled needs no edit."""

    def __init__(self, start: RowStart, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        params = start.params
        self.min_tokens = params.min_tokens
        allowed = params.allowed_token_ids
        self.allowed = None if allowed is None else _ids(allowed, vocab_size)
        self.never = _ids([words[0] for words in params.bad_words_token_ids if len(words) == 1], vocab_size)
        self.not_yet = _ids([*eos_token_ids, *(params.stop_token_ids or ())], vocab_size)
        bias = {token: value for token, value in (params.logit_bias or {}).items() if 0 <= token < vocab_size}
        self.bias_ids = np.array(list(bias), dtype=np.int64)
        self.bias = np.array(list(bias.values()), dtype=np.float32)
        self._bad_words = [
            (list(words[:-1]), words[-1])
            for words in params.bad_words_token_ids
            if len(words) > 1 and 0 <= words[-1] < vocab_size
        ]
        self._tail_len = max((len(before) for before, _ in self._bad_words), default=0)
        self._tail: list[int] = start.output[max(0, len(start.output) - self._tail_len) :].tolist()
        self.penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self.counts: TokenCounts | None = None
        if self.penalties != (1.0, 0.0, 0.0):
            # Only the repetition penalty looks at the prompt.
            prompt = start.prompt if params.repetition_penalty != 1.0 else start.prompt[:0]
            self.counts = TokenCounts(prompt, start.output)

    @property
    def always(self) -> bool:
        """Whether something is edited at every step; otherwise at most min_tokens is at work."""
        return bool(self.allowed is not None or len(self.never) or self._bad_words or len(self.bias_ids) or self.counts)

    def masked(self, output_len: int) -> list[NDArray[np.int64]]:
        """Tokens that may not be sampled after `output_len` tokens of output. Bad words are matched in the output."""
        parts = [self.never]
        if output_len < self.min_tokens:
            parts.append(self.not_yet)
        ends = [last for before, last in self._bad_words if self._tail[-len(before) :] == before]
        if ends:
            parts.append(np.array(ends, dtype=np.int64))
        return parts

    def add(self, token: int) -> None:
        """Count one more token of the output."""
        if self.counts is not None:
            self.counts.add(token)
        if self._tail_len:
            self._tail = [*self._tail, token][-self._tail_len :]


def apply_edits(logits: Tensor, rows: NDArray[np.int64], edits: Sequence[RowEdits], output_lens: Sequence[int]) -> None:
    """Edit the given rows of `logits` [draws, vocab] float32 in place, in the order of the contract."""
    for row, edit in zip(rows, edits, strict=True):
        if edit.allowed is not None:
            allowed = beside(edit.allowed, logits)
            kept = logits[row, allowed]
            logits[row] = -torch.inf
            logits[row, allowed] = kept
    masked = [edit.masked(length) for edit, length in zip(edits, output_lens, strict=True)]
    where = _flat(rows, [np.concatenate(parts) for parts in masked], logits)
    if where is not None:
        logits[where] = -torch.inf
    where = _flat(rows, [edit.bias_ids for edit in edits], logits)
    if where is not None:
        logits[where] += beside(np.concatenate([edit.bias for edit in edits]), logits)
    penalised = [i for i, edit in enumerate(edits) if edit.counts is not None and len(edit.counts.ids)]
    if penalised:
        _penalise(logits, rows[penalised], [edits[i] for i in penalised])


def _penalise(logits: Tensor, rows: NDArray[np.int64], edits: Sequence[RowEdits]) -> None:
    counts = [edit.counts for edit in edits if edit.counts is not None]
    where = _flat(rows, [count.ids for count in counts], logits)
    assert where is not None, "every row given here has counted tokens"
    per_row = np.array([edit.penalties for edit in edits], dtype=np.float32)
    per_token = np.repeat(per_row, [len(count.ids) for count in counts], axis=0)
    occurrences = beside(np.concatenate([count.counts for count in counts]), logits)
    repetition, frequency, presence = beside(per_token, logits).unbind(-1)
    values = logits[where]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * occurrences
    values -= presence * (occurrences > 0)
    logits[where] = values


def _flat(rows: NDArray[np.int64], columns: Sequence[NDArray[np.int64]], like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Index of the given columns of each row, as one pair of flat tensors; None if there is no column at all."""
    row_index = np.repeat(rows, [len(part) for part in columns])
    if not len(row_index):
        return None
    column_index = np.concatenate(columns)
    return beside(row_index, like), beside(column_index, like)


def _ids(tokens: Sequence[int], vocab_size: int) -> NDArray[np.int64]:
    return np.array(sorted({token for token in tokens if 0 <= token < vocab_size}), dtype=np.int64)
