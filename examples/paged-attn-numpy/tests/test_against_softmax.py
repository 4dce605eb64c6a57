"""One hand-made step against attention written out; the conformance suite covers the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

SCALE = 0.5


@pytest.mark.parametrize("window", [None, 2])
def test_a_prompt_attends_to_its_past_only(attn: Candidate, window: int | None) -> None:
    backend = attn.create(AttentionNeed("cpu", "float32", "float32", 2, 1, 8, block_size=2))
    kv = torch.full(backend.layout(4).shape, float("nan"))
    q, k, v = (torch.randn(3, heads, 8, generator=torch.Generator().manual_seed(heads)) for heads in (2, 1, 1))
    batch = Batch(
        num_tokens=3,
        num_seqs=1,
        query_start=np.array([0, 3], dtype=np.int32),
        seq_lens=np.array([3], dtype=np.int32),
        rows=np.array([0], dtype=np.int32),
        tables=np.array([[3, 1]], dtype=np.int32),
        positions=np.arange(3, dtype=np.int32),
        slots=np.array([6, 7, 2], dtype=np.int64),
    )
    out = torch.empty_like(q)
    backend.forward(AttentionLayer(0, SCALE, window=window), q, k, v, kv, backend.plan(batch), out)
    for position in range(3):
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(2):
            logits = k[first : position + 1, 0] @ q[position, head] * SCALE
            expected = logits.softmax(0) @ v[first : position + 1, 0]
            torch.testing.assert_close(out[position, head], expected)


def test_what_it_cannot_do_it_says(attn: Candidate) -> None:
    fit = attn.fit(AttentionNeed("cuda", "bfloat16", "bfloat16", 2, 1, 8, 16))
    assert len(fit.reasons) == 3
