"""Messages: a plan and a result come out as they went in, tables are mirrored, and little travels."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.batch import PromptRows, RowStart, StepPlan, StepResult, TopLogprobs
from paged_core.api.executor import Executor
from paged_core.api.params import SamplingParams
from paged_core.model.parallel.message import (
    ANSWER,
    STEP,
    StepReader,
    StepWriter,
    kind_of,
    pack,
    read_result,
    unpack,
    write_result,
)
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.seams import PreemptNow
from paged_core.testing.shadow import ShadowExecutor


def ints(*values):
    return np.array(values, dtype=np.int32)


def decodes(count, first_row=0):
    rows = np.arange(first_row, first_row + count, dtype=np.int32)
    return StepPlan(
        step=7,
        token_ids=rows * 3,
        positions=rows + 100,
        query_start=np.arange(count + 1, dtype=np.int32),
        rows=rows,
        seq_lens=rows + 101,
        sample_index=np.arange(count, dtype=np.int32),
        sample_rows=rows,
        sample_positions=rows + 101,
        changed_rows=ints(),
    )


def full_plan():
    """A plan with something in every field."""
    start = RowStart(2, SamplingParams(temperature=0.5, logit_bias={3: 1.0}), 11, 0, ints(1, 2, 3), ints(4))
    return replace(
        decodes(3),
        step=2**40,
        changed_rows=ints(1, 2),
        num_candidates=ints(0, 4, 0),
        token_source=ints(-1, 0, 1),
        swap_out=[SwapPair(1, 2), SwapPair(3, 4)],
        swap_in=[SwapPair(5, 6)],
        copies=[BlockCopy(7, 8)],
        started=[start],
        ended=[9, 4],
        prompt_rows=[PromptRows(2, 1, ints(0, 1), ints(5, 6), 3)],
        shared_prefixes=[(ints(0, 1), 4), (ints(2), 1)],
    )


def flat(value):
    """Values that `==` compares, of everything a plan or result may hold."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if isinstance(value, (list, tuple)):
        return [flat(each) for each in value]
    if isinstance(value, TopLogprobs):
        return [flat(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    return value


def assert_same(one, other, without=()):
    for each in fields(one):
        if each.name not in without:
            assert flat(getattr(one, each.name)) == flat(getattr(other, each.name)), each.name


def test_every_field_of_a_plan_arrives():
    tables = np.zeros((16, 8), dtype=np.int32)
    tables[1:3, :5] = np.arange(1, 11).reshape(2, 5)
    message = StepWriter(tables).write(full_plan())
    assert kind_of(message) == STEP
    reader = StepReader((16, 8), draws=True)
    assert_same(full_plan(), reader.read(message))
    assert (reader.tables == tables).all()


def test_a_rank_that_does_not_sample_gets_the_same_bytes_and_leaves_the_samplers_part():
    message = StepWriter(np.zeros((16, 8), dtype=np.int32)).write(full_plan())
    plan = StepReader((16, 8), draws=False).read(message)
    assert (plan.started, plan.ended) == ([], [])
    assert_same(full_plan(), plan, without=("started", "ended", "changed_rows"))


def test_absent_columns_stay_absent_and_empty_ones_empty():
    reader = StepReader((4, 4), draws=True)
    writer = StepWriter(np.zeros((4, 4), dtype=np.int32))
    assert reader.read(writer.write(decodes(2))).num_candidates is None
    nothing = replace(decodes(0), num_candidates=ints())
    plan = reader.read(writer.write(nothing))
    assert plan.num_candidates is not None
    assert plan.num_tokens == len(plan.num_candidates) == 0


def test_arrays_of_a_plan_can_be_written_to_without_touching_another_step():
    """Attention and runner get them as torch tensors, which share their memory."""
    writer, reader = StepWriter(np.zeros((4, 4), dtype=np.int32)), StepReader((4, 4), draws=True)
    message = writer.write(decodes(3))
    first, second = reader.read(message), reader.read(message)
    first.token_ids[:] = -1
    assert second.token_ids.tolist() == [0, 3, 6]


def test_only_entries_that_changed_travel():
    tables = np.zeros((256, 512), dtype=np.int32)
    writer, reader = StepWriter(tables), StepReader(tables.shape, draws=True)
    tables[:, :200] = np.random.default_rng(0).integers(1, 10**6, (256, 200))
    reader.read(writer.write(replace(decodes(256), changed_rows=np.arange(256, dtype=np.int32))))
    plain = len(writer.write(decodes(256)))
    tables[17, 200] = 5
    message = writer.write(replace(decodes(256), changed_rows=ints(17)))
    assert len(message) == plain + 8  # one place and one block
    reader.read(message)
    assert (reader.tables == tables).all()


def test_what_is_not_named_as_changed_does_not_travel():
    tables = np.zeros((4, 4), dtype=np.int32)
    writer, reader = StepWriter(tables), StepReader(tables.shape, draws=True)
    tables[:] = 3
    reader.read(writer.write(replace(decodes(2), changed_rows=ints(1))))
    assert reader.tables.tolist() == [[0] * 4, [3] * 4, [0] * 4, [0] * 4]


def test_a_message_is_as_long_as_what_it_says():
    """8 columns of 4 bytes a decode, and a header."""
    writer = StepWriter(np.zeros((256, 64), dtype=np.int32))
    sizes = [len(writer.write(decodes(count))) for count in (1, 256)]
    assert sizes[1] - sizes[0] == 255 * 8 * 4
    assert sizes[0] < 200


RESULTS = {
    "tokens": StepResult(3, ints(5, 6, 7).reshape(3, 1), ints(1, 0, 1), 0.25),
    "forced": StepResult(3, ints(5, 6, 7, 8).reshape(2, 2), ints(2, 1), 0.25),
    "nothing": StepResult(3, np.zeros((0, 1), np.int32), ints(), 0.0),
    "all": StepResult(
        2**40,
        ints(5).reshape(1, 1),
        ints(1),
        0.5,
        logprobs={0: TopLogprobs(np.float32([-1]), ints(1), ints(5, 6).reshape(1, 2), np.float32([[-1, -2]]))},
        failed={4: "NaN"},
        prompt_logprobs={2: (1, TopLogprobs(np.float32([-3]), ints(2), ints(9).reshape(1, 1), np.float32([[-1]])))},
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_arrives(name):
    read = read_result(write_result(RESULTS[name]))
    assert_same(RESULTS[name], read)
    assert read.tokens.shape == RESULTS[name].tokens.shape


def test_orders_and_answers_arrive():
    message = pack(ANSWER, {"a": ints(1, 2)})
    assert kind_of(message) == ANSWER
    assert unpack(message)["a"].tolist() == [1, 2]


class Messaged(Executor):
    """Wraps an executor, which sees nothing but what messages say: plans and tables. All that is not a worker's
    process about an executor with workers."""

    def __init__(self, inner):
        self.inner = inner

    def capacity(self):
        return self.inner.capacity()

    def start(self, num_blocks, num_host_blocks, tables):
        self.tables = tables
        self.writer, self.reader = StepWriter(tables), StepReader(tables.shape, draws=True)
        self.inner.start(num_blocks, num_host_blocks, self.reader.tables)

    def submit(self, plan):
        sent = self.reader.read(self.writer.write(plan))
        for row, length in zip(plan.rows, plan.seq_lens, strict=True):
            held = -(-int(length) // 4)
            assert (self.reader.tables[row, :held] == self.tables[row, :held]).all(), f"row {row}, step {plan.step}"
        return self.inner.submit(sent)

    def collect(self, ticket):
        return read_result(write_result(self.inner.collect(ticket)))

    def close(self):
        self.inner.close()


@pytest.mark.parametrize("preempt", ["swap", "recompute"])
@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
def test_an_engine_over_messages_does_what_it_does_without(alloc, preempt):
    """Samples, beams, chunks, prefix hits and preemptions, with tables that only messages keep up to date."""

    def answers(executor):
        shape = EngineShape(alloc=alloc, preempt=preempt, token_budget=16, max_num_seqs=8)
        wrap = lambda inner: PreemptNow(inner, lambda step, group: step % 6 == int(group.id) % 6)  # noqa: E731
        engine = build_engine(executor, shape, wrap_scheduler=wrap)
        for i in range(8):
            beams = {"use_beam_search": True, "beam_width": 3, "temperature": 0}
            how = beams if i % 4 == 3 else {"n": 1 + i % 2, "temperature": 1.0}
            prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, i]
            engine.add_request(str(i), prompt, SamplingParams(seed=i, max_tokens=12, ignore_eos=True, **how))
        found = {}
        for _ in range(2000):
            if not engine.has_unfinished:
                break
            found |= {each.request_id: each for each in engine.step() if each.finished}
        assert sum(engine.stats().preemptions.values()) > 5
        return {key: [part.token_ids for part in each.outputs] for key, each in found.items()}

    assert answers(Messaged(ShadowExecutor(4))) == answers(ShadowExecutor(4))
