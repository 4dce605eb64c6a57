"""StepPlanBuilder: from who runs to the flat arrays of a StepPlan. Decodes come first, as column operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import PromptRows, StepPlan

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from paged_core.api.request import Rows, Sequence

    Ints = NDArray[np.int32]

_NONE = np.zeros(0, dtype=np.int32)


class StepPlanBuilder:
    """Collects the parts of one step: `decode` at most once and first, then `chunk` per sequence, then `build`."""

    def __init__(self, rows: Rows, step: int, ahead_of: StepPlan | None = None) -> None:
        """`ahead_of`: the step in flight, whose draws are not known yet."""
        self._rows = rows
        self._step = step
        self._ahead_of = ahead_of
        self._decode_rows: Ints = _NONE
        self._chunks: list[tuple[Sequence, int]] = []
        self._draws: list[Collection[int]] = []
        self._prompt_from: list[int | None] = []

    def decode(self, rows: Ints) -> None:
        """One token for each of `rows`; all of them sample."""
        self._decode_rows = rows

    def chunk(self, seq: Sequence, num_tokens: int, *, draws: Collection[int], prompt_from: int | None) -> None:
        """`num_tokens` of `seq` from num_computed on.

        `draws`: rows that sample from its last token (several when it is about to fork). `prompt_from`: first prompt
        position whose logprobs are due.
        """
        self._chunks.append((seq, num_tokens))
        self._draws.append(draws)
        self._prompt_from.append(prompt_from)

    def build(self) -> StepPlan:
        """The arrays. Chunk rows count as changed; decode rows are the caller's to add."""
        rows, columns = self._decode_rows, self._rows
        starts = columns.num_computed[rows]
        num_decodes = len(rows)
        token_parts = [columns.tokens[rows, starts]]
        position_parts = [starts]
        lengths = np.ones(num_decodes + len(self._chunks), dtype=np.int32)
        seq_lens = np.empty(num_decodes + len(self._chunks), dtype=np.int32)
        seq_lens[:num_decodes] = starts + 1
        for i, (seq, num) in enumerate(self._chunks, start=num_decodes):
            start = seq.num_computed
            token_parts.append(columns.tokens[seq.row, start : start + num])
            position_parts.append(np.arange(start, start + num, dtype=np.int32))
            lengths[i], seq_lens[i] = num, start + num
        query_start = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=query_start[1:])
        chunk_rows = np.fromiter((seq.row for seq, _ in self._chunks), np.int32, len(self._chunks))
        counts = [len(draws) for draws in self._draws]
        drawn_rows = np.array([row for draws in self._draws for row in draws], dtype=np.int32)
        source = np.concatenate([np.arange(num_decodes), np.repeat(np.arange(len(counts)) + num_decodes, counts)])
        plan = StepPlan(
            step=self._step,
            token_ids=np.concatenate(token_parts),
            positions=np.concatenate(position_parts),
            query_start=query_start,
            rows=np.concatenate([rows, chunk_rows]),
            seq_lens=seq_lens,
            sample_index=query_start[source + 1] - 1,
            sample_rows=np.concatenate([rows, drawn_rows]),
            sample_positions=seq_lens[source],
            changed_rows=chunk_rows,
            prompt_rows=self._prompt_rows(query_start, num_decodes),
        )
        if self._ahead_of is not None:
            self._name_sources(plan, self._ahead_of)
        return plan

    def _name_sources(self, plan: StepPlan, before: StepPlan) -> None:
        """A sequence that draws in `before` has a gap of one, and that one token is its draw."""
        draw_of_row = np.full(self._rows.capacity, -1, dtype=np.int32)
        draw_of_row[before.sample_rows] = np.arange(len(before.sample_rows))
        source = np.full(plan.num_tokens, -1, dtype=np.int32)
        source[plan.query_start[1:] - 1] = draw_of_row[plan.rows]
        if (source >= 0).any():
            plan.token_source = source
            plan.token_ids[source >= 0] = 0

    def _prompt_rows(self, query_start: Ints, num_decodes: int) -> list[PromptRows]:
        """Position p's logits predict the token at p + 1; the first prompt token has no prediction."""
        result = []
        for i, (seq, num) in enumerate(self._chunks):
            due = self._prompt_from[i]
            if due is None:
                continue
            start = seq.num_computed
            first = max(due, start + 1)
            stop = min(start + num + 1, len(seq.request.prompt_token_ids))
            if first >= stop:
                continue
            flat = int(query_start[num_decodes + i]) + np.arange(first - 1 - start, stop - 1 - start, dtype=np.int32)
            wanted = seq.request.params.prompt_logprobs
            assert wanted is not None
            result.append(PromptRows(seq.row, first, flat, seq.token_ids[first:stop].copy(), wanted))
        return result
