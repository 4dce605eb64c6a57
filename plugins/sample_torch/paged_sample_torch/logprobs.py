"""Log-probabilities, ranks and the best tokens of rows of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.batch import TopLogprobs

if TYPE_CHECKING:
    from torch import Tensor

MIN_LOGPROB = -9999.0
"""Reported for masked tokens and for rows that hold NaN, so that every value can be written as JSON."""


def top_logprobs(logits: Tensor, targets: Tensor, num_best: int, *, normalise: bool = True) -> TopLogprobs:
    """`listed_logprobs` of the `num_best` best tokens of each row, equals by id. At most vocab tokens are listed."""
    ids = best_tokens(logits.float(), min(num_best, logits.shape[1]))
    return listed_logprobs(logits, targets, ids, normalise=normalise)


def listed_logprobs(logits: Tensor, targets: Tensor, ids: Tensor, *, normalise: bool = True) -> TopLogprobs:
    """Log-probabilities of `targets` int64 [rows] and of `ids` int64 [rows, k] under `logits` [rows, vocab].

    rank = 1 + the number of strictly better tokens: equals share the better rank, so a greedy token has rank 1.
    Not to `normalise` gives the logits themselves.
    """
    logits = logits.float()
    peak = logits.amax(dim=-1, keepdim=True)
    values, norm = logits, torch.zeros_like(peak)
    if normalise:
        values = (logits - peak).nan_to_num_(nan=0.0, posinf=0.0, neginf=-torch.inf)  # inf - inf: the best is +inf
        norm = values.exp().sum(dim=-1, keepdim=True).log_()
    rank = (logits > logits.gather(1, targets.unsqueeze(1))).sum(dim=-1) + 1
    chosen = values.gather(1, targets.unsqueeze(1)) - norm
    listed = values.gather(1, ids) - norm
    broken = peak.isnan()
    chosen, listed = (
        part.clamp(MIN_LOGPROB, -MIN_LOGPROB).masked_fill(broken, MIN_LOGPROB) for part in (chosen, listed)
    )
    return TopLogprobs(
        chosen.squeeze(1).cpu().numpy(),
        rank.cpu().numpy().astype(np.int32),
        ids.cpu().numpy().astype(np.int32),
        listed.cpu().numpy(),
    )


def best_tokens(logits: Tensor, count: int) -> Tensor:
    """Ids of the `count` best tokens of each row, best first, equals by id: int64 [rows, count]."""
    vocab = logits.shape[1]
    if count == 0:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    values, ids = logits.topk(min(count + 1, vocab), dim=-1)
    # topk orders equals as it likes: put them by id, and where equals straddle the end, sort the whole row.
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, by_value)[:, :count]
    if count < vocab:
        cut = values[:, count - 1] == values[:, count]
        if bool(cut.any()):
            ids[cut] = logits[cut].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return ids


def row_of(result: TopLogprobs, row: int, num_best: int | None = None) -> TopLogprobs:
    """One row of `result`, still as arrays, with all of its best tokens or only the first `num_best`."""
    part = slice(row, row + 1)
    ids, logprobs = result.token_ids[part, :num_best], result.logprobs[part, :num_best]
    return TopLogprobs(result.chosen[part], result.rank[part], ids, logprobs)
