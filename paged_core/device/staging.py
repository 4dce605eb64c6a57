"""Staging: a step's arrays travel to the device in one copy, and only those table rows that changed travel with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.batch import Batch, DeviceBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def on_device(batch: Batch, device: torch.device) -> DeviceBatch:
    """`batch.on_device`, or copies of the batch's arrays where the executor left that to the backend."""
    if batch.on_device is not None:
        return batch.on_device
    return DeviceBatch(
        query_start=_copied(batch.query_start, device),
        seq_lens=_copied(batch.seq_lens, device),
        rows=_copied(batch.rows, device),
        tables=_copied(batch.tables, device),
        positions=_copied(batch.positions, device),
        slots=_copied(batch.slots, device),
    )


def _copied(array: NDArray[np.int32] | NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """A tensor of its own: the array may be read-only, or change before the device has read it."""
    return torch.tensor(array, device=device)
