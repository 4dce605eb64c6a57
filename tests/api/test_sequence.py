"""A slice of a sequence's tokens is the same before and after it has a row."""

from __future__ import annotations

import numpy as np
import pytest

from paged_core.api.params import SamplingParams
from paged_core.api.request import Request, Rows, Sequence

PROMPT = (7, 5, 3, 2, 11)


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 2), (1, 4), (2, 9), (5, 9), (0, 5)])
def test_a_slice_of_tokens_is_the_slice_of_all(begin, end):
    seq = Sequence(Request("a", PROMPT, SamplingParams(), 0.0))
    waiting = seq.token_slice(begin, end)
    rows = Rows(2, 16)
    rows.tokens[:] = 99  # leftovers of others
    seq.bind(rows, 1)
    for found in (waiting, seq.token_slice(begin, end)):
        assert found.dtype == np.int32
        assert found.tolist() == seq.token_ids[begin:end].tolist() == list(PROMPT[begin:end])
