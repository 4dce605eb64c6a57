from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api.batch import StepPlan
from paged_core.device.staging import BatchSizes, Staging, on_device
from paged_core.device.upload import uploaded
from paged_core.testing.accelerator import FakeAccelerator

ROWS, WIDTH, BLOCK = 6, 9, 4
MOST = BatchSizes(40, ROWS, ROWS)


def plan_of(rows, starts, counts, changed=(), sources=None) -> StepPlan:
    """Sequence i of table row rows[i] computes counts[i] tokens from position starts[i] on; all draw."""
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)]).astype(np.int32)
    return StepPlan(
        step=0,
        token_ids=(positions * 7 + 1).astype(np.int32),
        positions=positions,
        query_start=query_start,
        rows=np.array(rows, dtype=np.int32),
        seq_lens=(np.array(starts) + counts).astype(np.int32),
        sample_index=(query_start[1:] - 1).astype(np.int32),
        sample_rows=np.array(rows, dtype=np.int32),
        sample_positions=(np.array(starts) + counts).astype(np.int32),
        changed_rows=np.array(changed, dtype=np.int32),
        token_source=None if sources is None else np.array(sources, dtype=np.int32),
    )


def staging(device: FakeAccelerator, tables=None, **options) -> Staging:
    tables = np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH) if tables is None else tables
    return Staging(device, tables, BLOCK, MOST, **options)


def test_all_arrays_of_a_step_travel_in_one_copy():
    device = FakeAccelerator(is_eager=True)
    made = staging(device)
    plan = plan_of([4, 1], [5, 0], [1, 6])
    step = made.put(plan)
    assert device.num_copies == 1
    there = on_device(step.batch, device.device)
    assert there.positions.tolist() == [5, 0, 1, 2, 3, 4, 5]
    assert there.query_start.tolist() == [0, 1, 7]
    assert there.seq_lens.tolist() == [6, 6]
    assert there.rows.tolist() == [4, 1]
    assert there.slots.tolist() == [(4 * WIDTH + 1) * BLOCK + 1] + [
        (WIDTH + p // BLOCK) * BLOCK + p % BLOCK for p in range(6)
    ]
    assert there.slots.dtype == torch.int64
    assert step.sample_index.tolist() == [0, 6]
    assert made.take_tokens(step).tolist() == plan.token_ids.tolist()
    for name in ("positions", "query_start", "seq_lens", "rows", "slots"):
        assert getattr(step.batch, name).tolist() == getattr(there, name).tolist()


def test_tokens_that_only_the_device_knows_come_from_the_draws_of_the_step_before():
    made = staging(FakeAccelerator(is_eager=True))
    made.drawn[:3] = torch.tensor([101, 102, 103], dtype=torch.int32)
    step = made.put(plan_of([4, 1, 2], [5, 7, 0], [1, 1, 3], sources=[2, 0, -1, -1, -1]))
    assert made.take_tokens(step).tolist() == [103, 101, 1, 8, 15]


def test_padding_is_sequences_of_length_0_whose_token_is_written_nowhere():
    made = staging(FakeAccelerator(is_eager=True))
    step = made.put(plan_of([3, 2], [5, 7], [1, 1], sources=[1, -1]), BatchSizes(4, 4, 4))
    there = on_device(step.batch, torch.device("cpu"))
    assert (step.batch.num_tokens, step.batch.num_seqs) == (4, 4)
    assert there.query_start.tolist() == [0, 1, 2, 3, 4]
    assert there.seq_lens.tolist() == [6, 8, 0, 0]
    assert there.rows.tolist() == [3, 2, 0, 0]
    assert there.slots.tolist()[2:] == [-1, -1]
    assert step.sample_index.tolist() == [0, 1, 0, 0]
    assert made.take_tokens(step).tolist()[1:] == [7 * 7 + 1, 0, 0]


def test_batches_of_one_size_lie_at_one_address():
    made = staging(FakeAccelerator(is_eager=True))
    sizes = BatchSizes(4, 4, 4)
    steps = [made.put(plan_of(rows, starts, [1] * len(rows)), sizes) for rows, starts in (([1], [0]), ([0, 2], [3, 9]))]
    first, second = (
        [*(getattr(step.batch.on_device, name) for name in ("slots", "tables", "positions", "seq_lens")), step.source]
        for step in steps
    )
    assert [tensor.data_ptr() for tensor in first] == [tensor.data_ptr() for tensor in second]
    assert first[3].tolist() == [4, 10, 0, 0]  # the views of the first step see the second


def test_a_host_buffer_is_not_filled_while_the_copy_from_it_is_under_way():
    """The fake device raises when host memory changes before the host waited for its copy."""
    made = staging(FakeAccelerator(is_eager=True))
    for start in range(6):
        made.put(plan_of([1], [start], [1]))
    made._free = [FakeAccelerator().event() for _ in made._hosts]  # never recorded by this device
    plans = [plan_of([1], [start], [1]) for start in range(6)]
    with pytest.raises(AssertionError, match="host memory changed"):
        list(map(made.put, plans))


def test_a_plan_larger_than_the_buffers_is_refused():
    with pytest.raises(ValueError, match="buffers hold"):
        staging(FakeAccelerator(is_eager=True)).put(plan_of([0], [0], [41]))


@st.composite
def histories(draw):
    """Steps of a random engine: rows that change whether they run or not, and those that run."""
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        changed = draw(st.lists(st.integers(0, ROWS - 1), max_size=4, unique=True))
        running = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True))
        steps.append((changed, [(row, draw(st.integers(0, WIDTH * BLOCK - 1))) for row in running]))
    return steps


@given(histories(), st.integers(0, 10_000), st.sampled_from([1, 3, 1 << 10]))
def test_the_devices_table_has_every_entry_that_the_steps_sequences_own(history, seed, changes):
    random = np.random.default_rng(seed)
    device = FakeAccelerator(seed, is_eager=True)
    tables = random.integers(0, 1000, (ROWS, WIDTH)).astype(np.int32)
    made = staging(device, tables, changes=changes)
    for changed, running in history:
        for row in changed:
            tables[row, random.integers(WIDTH) :] = random.integers(0, 1000)
        rows, starts = zip(*running, strict=True)
        step = made.put(plan_of(rows, starts, [1] * len(rows), changed))
        for row, start in running:
            owned = start // BLOCK + 1
            assert made.tables[row, :owned].tolist() == tables[row, :owned].tolist()
        assert step.batch.on_device.tables is made.tables


def test_only_entries_that_changed_travel():
    tables = np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH).copy()
    made = staging(FakeAccelerator(is_eager=True), tables)
    made.put(plan_of([2, 3], [30, 6], [1, 1], changed=[2, 3]))
    assert len(made._changed(plan_of([2, 3], [30, 6], [1, 1], changed=[2]))[0]) == 0
    tables[2, 5] = 777
    index, values = made._changed(plan_of([2, 3], [31, 7], [1, 1], changed=[2]))
    assert (index.tolist(), values.tolist()) == ([2 * WIDTH + 5], [777])
    index, values = made._changed(plan_of([3], [8], [1]))  # grown without being named
    assert (index.tolist(), values.tolist()) == ([3 * WIDTH + 2], [3 * WIDTH + 2])


def test_an_array_may_be_read_only_and_change_after_it_was_sent():
    array = np.arange(4, dtype=np.int32)
    tensor = uploaded(array, torch.device("cpu"))
    array[:] = 9
    assert tensor.tolist() == [0, 1, 2, 3]
    array.flags.writeable = False
    assert uploaded(array, torch.device("cpu")).dtype == torch.int32
