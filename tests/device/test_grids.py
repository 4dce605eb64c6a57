"""A plan for devices: which kernels a batch needs, and grids that cover it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_core.api.batch import Batch
from paged_core.device.grids import plan_of


def batch_of(counts):
    """Sequences that compute so many tokens each, from their first on."""
    starts = np.cumsum([0, *counts]).astype(np.int32)
    num_tokens, num_seqs = int(starts[-1]), len(counts)
    return Batch(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        query_start=starts,
        seq_lens=np.array(counts, dtype=np.int32),
        rows=np.arange(num_seqs, dtype=np.int32),
        tables=np.arange(num_seqs, dtype=np.int32)[:, None],
        positions=np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
        slots=np.arange(num_tokens, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("counts", "num_splits", "num_tiles"),
    [([1, 1, 1], 30, 0), ([5, 9], 0, 14 // 4 + 2), ([1, 9, 1], 30, 11 // 4 + 3)],
    ids=["decodes", "prefills", "both"],
)
def test_only_kernels_that_a_batch_needs_have_a_grid(counts, num_splits, num_tiles):
    plan = plan_of(batch_of(counts), torch.device("cpu"), lambda num_seqs: 10 * num_seqs, 4)
    assert (plan.num_splits, plan.num_tiles) == (num_splits, num_tiles)
    assert (plan.num_tokens, plan.num_seqs) == (sum(counts), len(counts))
    assert plan.arrays.query_start.tolist() == np.cumsum([0, *counts]).tolist()
    assert plan.num_tiles == 0 or plan.num_tiles >= sum(-(-count // 4) for count in counts)
