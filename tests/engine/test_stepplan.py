from __future__ import annotations

import numpy as np

from paged_core.api.params import SamplingParams
from paged_core.api.request import Request, Rows, Sequence
from paged_core.engine.stepplan import StepPlanBuilder


def sequence(rows, row, prompt, computed, output=(), **params):
    seq = Sequence(Request(str(row), tuple(prompt), SamplingParams(**params), 0.0))
    seq.bind(rows, row)
    for token in output:
        rows.tokens[row, rows.num_tokens[row]] = token
        rows.num_tokens[row] += 1
    rows.num_computed[row] = computed
    return seq


def test_decodes_come_first_then_chunks_with_their_draws():
    rows = Rows(8, 32)
    sequence(rows, 3, [10, 11, 12], 3, [99])
    sequence(rows, 5, [20, 21], 2, [98])
    middle = sequence(rows, 1, [30, 31, 32, 33, 34], 1)
    last = sequence(rows, 2, [40, 41, 42], 1)
    builder = StepPlanBuilder(rows, 7)
    builder.decode(np.array([3, 5], dtype=np.int32))
    builder.chunk(middle, 2, draws=(), prompt_from=None)
    builder.chunk(last, 2, draws=[2], prompt_from=None)
    plan = builder.build()
    assert plan.step == 7
    assert plan.token_ids.tolist() == [99, 98, 31, 32, 41, 42]
    assert plan.positions.tolist() == [3, 2, 1, 2, 1, 2]
    assert plan.query_start.tolist() == [0, 1, 2, 4, 6]
    assert plan.seq_lens.tolist() == [4, 3, 3, 3]
    assert plan.rows.tolist() == [3, 5, 1, 2]
    assert plan.sample_rows.tolist() == [3, 5, 2]
    assert plan.sample_index.tolist() == [0, 1, 5]
    assert plan.sample_positions.tolist() == [4, 3, 3]
    assert plan.changed_rows.tolist() == [1, 2]
    assert plan.num_tokens == 6
    for name in ("token_ids", "positions", "query_start", "rows", "seq_lens", "sample_index", "sample_rows"):
        assert getattr(plan, name).dtype == np.int32, name


def test_an_empty_step_has_empty_arrays():
    plan = StepPlanBuilder(Rows(2, 8), 0).build()
    assert plan.num_tokens == 0
    assert plan.query_start.tolist() == [0]
    assert len(plan.sample_rows) == 0


def test_prompt_rows_cover_every_prompt_token_but_the_first_once():
    """Chunks 0-2, 3-5, 6-7 of an 8-token prompt predict tokens 1-3, 4-6 and 7: position p predicts p + 1."""
    rows = Rows(2, 32)
    seq = sequence(rows, 0, list(range(50, 58)), 0, prompt_logprobs=2)
    seen = []
    due = 1
    for num in (3, 3, 2):
        builder = StepPlanBuilder(rows, 0)
        builder.chunk(seq, num, draws=(), prompt_from=due)
        (want,) = builder.build().prompt_rows
        assert want.first_position == due
        assert want.num_logprobs == 2
        start = int(rows.num_computed[0])
        assert (want.token_index + start + 1).tolist() == list(range(due, due + len(want.targets)))
        seen += want.targets.tolist()
        due += len(want.targets)
        rows.num_computed[0] += num
    assert seen == list(range(51, 58))


def test_prompt_rows_already_collected_are_not_asked_again_after_a_recompute():
    rows = Rows(2, 32)
    seq = sequence(rows, 0, list(range(50, 58)), 0, prompt_logprobs=0)
    builder = StepPlanBuilder(rows, 0)
    builder.chunk(seq, 6, draws=(), prompt_from=4)
    (want,) = builder.build().prompt_rows
    assert (want.first_position, want.targets.tolist(), want.token_index.tolist()) == (4, [54, 55, 56], [3, 4, 5])
