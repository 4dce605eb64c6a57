"""Temperature, min-p, top-k, top-p and the draw itself, for rows that are not greedy.

Probabilities become integer weights, floor(2**40 * exp((logit - best) / temperature)). Sums of integers do not depend
on the order or the batch they are taken in, so a row's token is the same alone and among any neighbours, on any device
(law 16). A token of less than 2**-40 of the best one's probability is never drawn.

Each filter is a threshold on the scaled logit; tokens that tie with the last one kept are kept too:

    min-p   logit >= best + temperature * log(min_p)
    top-k   logit >= the k-th best
    top-p   logit >= that of the last token of the smallest best-first set that holds top_p of what is left so far
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from paged_core.device.upload import beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    _Way = Callable[[Tensor, "DrawParams"], Tensor]

WEIGHT_ONE = 2.0**40
NARROW = 512
"""Up to this top_k a row is drawn from its best tokens alone, without touching the rest of the vocabulary."""
PREFIX = 256
WIDER = 16
"""A top-p cut is looked for among the PREFIX best tokens, then among WIDER times as many, and so on up to all."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Host arrays, one entry a row. top_k 0 = off; top_p 1 = off; min_p 0 = off; uniform in (0, 1)."""

    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    uniform: NDArray[np.float64]

    def select(self, index: NDArray[np.int64]) -> DrawParams:
        """The entries at `index`."""
        return DrawParams(
            self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index], self.uniform[index]
        )

    def columns(self, like: Tensor) -> Columns:
        """All of them on the device of `like`, in one transfer."""
        with np.errstate(divide="ignore"):
            floor = np.log(self.min_p)
        return Columns(
            *beside(np.stack([self.temperature, self.top_k, self.top_p, floor, self.uniform]), like)[:, :, None]
        )


class Columns(NamedTuple):
    """DrawParams on a device, each float64 [rows, 1]; `floor`: the logarithm of min_p."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    floor: Tensor
    uniform: Tensor


def draw(logits: Tensor, params: DrawParams) -> Tensor:
    """Draw one token per row of `logits` [rows, vocab] float32; int64 [rows].

    A row that holds NaN or only -inf yields some token; the caller, who knows the row's maximum, reports it.
    """
    most = min(NARROW, logits.shape[1] - 1)
    return _draw_in_groups(logits, params, most, (_draw_narrow, _draw_wide))


def draw_ahead(logits: Tensor, params: DrawParams) -> Tensor:
    """`draw`, looking wide enough from the start that nothing has to be asked of the device.

    A top-p cut may lie anywhere, so rows with one, unless a small top_k bounds it, are sorted whole.
    """
    return _draw_in_groups(logits, params, NARROW, (_draw_best, _draw_whole))


def _draw_in_groups(logits: Tensor, params: DrawParams, most: int, ways: tuple[_Way, _Way]) -> Tensor:
    """Rows with a top_k up to `most` go the first way; others with filters, and those without, each by the second."""
    narrow_way, wide_way = ways
    narrow = (params.top_k > 0) & (params.top_k <= most)
    filtered_too = ~narrow & ((params.top_k > 0) | (params.top_p < 1.0))
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for group, way in ((narrow, narrow_way), (filtered_too, wide_way), (~(narrow | filtered_too), wide_way)):
        index = np.flatnonzero(group)
        if not len(index):
            continue
        if len(index) == len(logits):
            return way(logits, params)
        rows = beside(index, logits)
        tokens[rows] = way(logits[rows], params.select(index))
    return tokens


def _draw_best(logits: Tensor, params: DrawParams) -> Tensor:
    """Rows whose every cut is told by as many of the best tokens as the largest top_k."""
    return _draw_wide(logits, params, min(int(params.top_k.max()), logits.shape[1]))


def _draw_whole(logits: Tensor, params: DrawParams) -> Tensor:
    return _draw_wide(logits, params, logits.shape[1])


def _draw_narrow(logits: Tensor, params: DrawParams) -> Tensor:
    """Draw rows with a small top_k from their best tokens alone, in order of id as in the full row: same result."""
    width = min(int(params.top_k.max()) + 1, logits.shape[1])
    values, ids = logits.topk(width, dim=-1)
    last_kept = values.gather(1, beside(params.top_k - 1, logits).unsqueeze(1))
    # One more than needed was fetched: if it ties with the k-th best, ties may go on beyond what was fetched.
    spill = (values[:, -1:] >= last_kept).squeeze(1) & (width < logits.shape[1])
    ids, order = ids.sort(dim=-1)
    tokens = ids.gather(1, _draw_wide(values.gather(1, order), params).unsqueeze(1)).squeeze(1)
    if bool(spill.any()):
        rows = spill.nonzero().squeeze(1)
        tokens[rows] = _draw_wide(logits[rows], params.select(rows.cpu().numpy()))
    return tokens


def _draw_wide(logits: Tensor, params: DrawParams, width: int | None = None) -> Tensor:
    columns = params.columns(logits)
    scaled = _scaled(logits, columns)
    weights = _weights(scaled)
    threshold = _threshold(scaled, weights, (params, columns), width)
    if threshold is not None:
        weights.masked_fill_(scaled < threshold, 0)
    return _pick(weights, columns.uniform)


def filtered(logits: Tensor, params: DrawParams) -> Tensor:
    """The logits [rows, vocab] a draw sees: divided by the temperature, -inf where a filter takes the token away."""
    columns = params.columns(logits)
    scaled = _scaled(logits, columns)
    threshold = _threshold(scaled, _weights(scaled), (params, columns))
    result = (logits.double() / columns.temperature).float()
    return result if threshold is None else result.masked_fill_(scaled < threshold, -torch.inf)


def _scaled(logits: Tensor, columns: Columns) -> Tensor:
    """(logit - best) / temperature, float64."""
    scaled = (logits.double() - logits.amax(dim=-1, keepdim=True)) / columns.temperature
    # inf - inf: where the best logit is +inf, the tokens that have it share everything.
    return scaled.nan_to_num_(nan=0.0, posinf=0.0, neginf=-torch.inf)


def _threshold(
    scaled: Tensor, weights: Tensor, both: tuple[DrawParams, Columns], width: int | None = None
) -> Tensor | None:
    """What a scaled logit must reach [rows, 1]; None where no row has a filter. `both`: here and on the device.

    `width`: so many of the best tokens tell every cut, but for ties with the last of them, which it then equals.
    """
    params, columns = both
    filters = bool(((params.top_k > 0) | (params.top_p < 1.0)).any())
    if not filters:
        return columns.floor if bool((params.min_p > 0).any()) else None
    if width is not None:
        return _cut_among(_best(scaled, width), scaled, weights, columns.floor, columns)[0]
    return _cut(scaled, weights, columns.floor, both, PREFIX)


def _cut(scaled: Tensor, weights: Tensor, threshold: Tensor, both: tuple[DrawParams, Columns], width: int) -> Tensor:
    """Raise `threshold` [rows, 1] to what top-k and then top-p ask for, looking at the `width` best tokens first."""
    params, columns = both
    cut, found = _cut_among(_best(scaled, width), scaled, weights, threshold, columns)
    if width < scaled.shape[1] and not bool(found.all()):
        rows = (~found).nonzero().squeeze(1)
        some = params.select(rows.cpu().numpy())
        narrower = some, some.columns(scaled)
        cut[rows] = _cut(scaled[rows], weights[rows], threshold[rows], narrower, width * WIDER)
    return cut


def _best(scaled: Tensor, width: int) -> Tensor:
    """The `width` best of each row, best first."""
    if width >= scaled.shape[1]:
        return scaled.sort(dim=-1, descending=True).values
    return scaled.topk(width, dim=-1).values


def _cut_among(
    best: Tensor, scaled: Tensor, weights: Tensor, threshold: Tensor, columns: Columns
) -> tuple[Tensor, Tensor]:
    """The threshold [rows, 1], and whether it was found [rows] among the `best` scaled logits [rows, some]."""
    top_k, top_p = columns.top_k, columns.top_p
    kth = best.gather(1, (top_k - 1).clamp(0, best.shape[1] - 1).long())
    threshold = torch.where(top_k > 0, torch.maximum(threshold, kth), threshold)
    goal = top_p * weights.masked_fill(scaled < threshold, 0).sum(dim=-1, keepdim=True)
    best_weights = _weights(best).masked_fill_(best < threshold, 0)
    reached = best_weights.cumsum(dim=-1)
    kept = ((reached - best_weights) < goal) & (best >= threshold)
    last = best.gather(1, (kept.sum(dim=-1, keepdim=True) - 1).clamp_min(0))
    found = (top_k <= best.shape[1]) & ((top_p >= 1.0) | (reached[:, -1:] >= goal) | (best[:, -1:] < threshold))
    return torch.where(top_p < 1.0, torch.maximum(threshold, last), threshold), found.squeeze(1)


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token at `uniform` [rows, 1] of the way through the weights [rows, vocab], in order of id."""
    reached = weights.cumsum(dim=-1)
    total = reached[:, -1:]
    target = torch.minimum((uniform * total).long(), total - 1)
    return torch.searchsorted(reached, target, right=True).squeeze(1).clamp_max_(weights.shape[1] - 1)


def _weights(scaled: Tensor) -> Tensor:
    return scaled.exp().mul_(WEIGHT_ONE).long()
