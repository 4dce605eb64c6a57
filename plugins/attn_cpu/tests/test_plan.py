"""The work list covers every (query token, key) pair once, by rules that look at one sequence only."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paged_attn_cpu import parameters as at
from paged_attn_cpu.planning import QUERY_ROWS, SPLIT, make_plan

from paged_core.api.batch import Batch


def batch_of(spans):
    counts = np.array([new for _, new in spans], dtype=np.int32)
    return Batch(
        num_tokens=int(counts.sum()),
        num_seqs=len(spans),
        query_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        seq_lens=np.array([prefix + new for prefix, new in spans], dtype=np.int32),
        rows=np.arange(len(spans), dtype=np.int32)[::-1].copy(),
        tables=np.zeros((len(spans), 4), dtype=np.int32),
        positions=np.zeros(int(counts.sum()), dtype=np.int32),
        slots=np.zeros(int(counts.sum()), dtype=np.int64),
    )


SPANS = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 200)), min_size=1, max_size=8)


@given(SPANS, st.sampled_from([1, 3, 8, 100]))
def test_every_token_meets_its_keys_exactly_once(spans, group):
    plan = make_plan(batch_of(spans), group)
    seen: dict[int, list[tuple[int, int]]] = {}
    for unit in plan.units:
        assert unit[at.COUNT] * group <= max(QUERY_ROWS, group)
        for i in range(unit[at.COUNT]):
            end = min(unit[at.END], unit[at.POSITION] + i + 1)
            seen.setdefault(int(unit[at.TOKEN] + i), []).append((int(unit[at.BEGIN]), int(end)))
    token = 0
    for prefix, new in spans:
        for i in range(new):
            ranges = sorted(seen.pop(token))
            assert ranges[0][0] == 0
            assert ranges[-1][1] == prefix + i + 1
            assert all(a[1] == b[0] for a, b in pairwise(ranges))
            token += 1
    assert not seen


@given(SPANS)
def test_splits_do_not_depend_on_neighbours(spans):
    together = make_plan(batch_of(spans), 3).units
    for row, span in enumerate(spans):
        alone = make_plan(batch_of([span]), 3).units
        mine = together[together[:, at.ROW] == len(spans) - 1 - row]
        columns = [at.COUNT, at.POSITION, at.BEGIN, at.END, at.PARTS]
        assert sorted(mine[:, columns].tolist()) == sorted(alone[:, columns].tolist())


@given(SPANS)
def test_partials_and_merges_are_numbered_without_gaps(spans):
    plan = make_plan(batch_of(spans), 3)
    split = plan.units[plan.units[:, at.PARTIAL] >= 0]
    assert sorted(split[:, at.PARTIAL]) == list(range(plan.num_partials))
    assert set(split[:, at.MERGE]) == set(range(plan.num_merges))
    long = [prefix + 1 for prefix, new in spans if new == 1 and prefix + 1 > SPLIT]
    assert plan.num_merges == len(long)


@pytest.mark.parametrize(("sequences", "workers", "heads"), [(4, 1, 8), (3, 1, 1), (8, 2, 8), (7, 2, 1)])
def test_heads_are_taken_together_where_units_are_plenty(sequences, workers, heads):
    plan = make_plan(batch_of([(100, 1)] * sequences), 4, heads=8, workers=workers)
    assert plan.fields[at.HEADS - at.NUM_TOKENS] == heads
