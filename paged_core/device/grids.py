"""DevicePlan: what of a step all layers share, for backends with one kernel for decodes and one for prefills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paged_core.device.staging import on_device

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from paged_core.api.batch import Batch, DeviceBatch


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One step. `num_splits` 0: no sequence computes a single token; `num_tiles` 0: none computes more."""

    arrays: DeviceBatch
    rope: list[tuple[Tensor, Tensor]]
    num_tokens: int
    num_seqs: int
    num_splits: int
    num_tiles: int


def plan_of(batch: Batch, device: torch.device, num_splits: Callable[[int], int], queries_per_tile: int) -> DevicePlan:
    """Grids, and the batch's arrays on `device`.

    `num_splits(sequences)`: into how many ranges a decode of so many cuts each one's keys. A tile of prefill holds
    `queries_per_tile` tokens of one sequence.
    """
    counts = np.diff(batch.query_start[: batch.num_seqs + 1])
    return DevicePlan(
        on_device(batch, device),
        batch.rope,
        batch.num_tokens,
        batch.num_seqs,
        num_splits(batch.num_seqs) if (counts == 1).any() else 0,
        batch.num_tokens // queries_per_tile + batch.num_seqs if (counts > 1).any() else 0,
    )
