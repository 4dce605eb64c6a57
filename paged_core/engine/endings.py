"""Endings: which branches end with the token they just drew, by token id or length. Column operations only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.params import SamplingParams
    from paged_core.api.repetition import RepetitionDetectionParams
    from paged_core.api.request import Rows

_WIDTH = 8  # ids kept as columns; longer lists are looked up in a set


class Ending(NamedTuple):
    """One branch ends by `finish_reason` stop, length or repetition; `stop_reason` is the user's stop token id, if it
    was one, or "repetition_detected"."""

    row: int
    finish_reason: str
    stop_reason: int | str | None


class Endings:
    """Per row: the token ids that end it, and the output length before which none does."""

    def __init__(self, rows: Rows, eos_token_ids: tuple[int, ...]) -> None:
        self._rows = rows
        self._eos = eos_token_ids
        self._ids = np.full((rows.capacity, _WIDTH), -1, dtype=np.int32)
        self._min_tokens = np.zeros(rows.capacity, dtype=np.int32)
        self._stop_ids: dict[int, frozenset[int]] = {}
        self._long: dict[int, frozenset[int]] = {}
        self._repetition: dict[int, RepetitionDetectionParams] = {}

    def start(self, row: int, params: SamplingParams) -> None:
        """`row` begins: end-of-sequence ids unless ignored, and the user's stop ids always (case M16)."""
        stops = list(params.stop_token_ids or [])
        ids = list(dict.fromkeys(([] if params.ignore_eos else list(self._eos)) + stops))
        self._ids[row] = -1
        self._ids[row, : min(len(ids), _WIDTH)] = ids[:_WIDTH]
        self._min_tokens[row] = params.min_tokens
        self._stop_ids[row] = frozenset(stops)
        self._long.pop(row, None)
        self._repetition.pop(row, None)
        if params.repetition_detection is not None:
            self._repetition[row] = params.repetition_detection
        if len(ids) > _WIDTH:
            self._long[row] = frozenset(ids[_WIDTH:])

    def end(self, row: int) -> None:
        """Forget `row`."""
        self._stop_ids.pop(row, None)
        self._long.pop(row, None)
        self._repetition.pop(row, None)

    def check(self, drawn: NDArray[np.int32], tokens: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> list[Ending]:
        """Rows of `drawn` that end; `tokens` int32 [len(drawn)] were just entered as the last of `num_tokens`."""
        columns = self._rows
        stopped = (self._ids[drawn] == tokens[:, None]).any(axis=1)
        if self._long:
            stopped |= np.fromiter(
                (int(token) in self._long.get(int(row), ()) for row, token in zip(drawn, tokens, strict=True)),
                bool,
                len(drawn),
            )
        late = num_tokens - columns.num_prompt[drawn] > self._min_tokens[drawn]
        stopped &= late
        repeating = self._repeating(drawn, num_tokens, late) if self._repetition else stopped
        full = num_tokens >= columns.max_tokens[drawn]
        endings = []
        for i in np.nonzero(stopped | repeating | full)[0]:
            row, token = int(drawn[i]), int(tokens[i])
            if stopped[i]:
                endings.append(Ending(row, "stop", token if token in self._stop_ids[row] else None))
            elif full[i]:
                endings.append(Ending(row, "length", None))
            else:
                endings.append(Ending(row, "repetition", "repetition_detected"))
        return endings

    def _repeating(
        self, drawn: NDArray[np.int32], num_tokens: NDArray[np.int32], late: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which rows that ask for it are in a loop, past their min_tokens."""
        columns, found = self._rows, np.zeros(len(drawn), dtype=bool)
        for i in np.nonzero(late)[0]:
            row = int(drawn[i])
            wanted = self._repetition.get(row)
            if wanted is not None:
                found[i] = wanted.found_in(columns.tokens[row, columns.num_prompt[row] : num_tokens[i]])
        return found
