"""Executors: the tokens of a plain reference, plans and their order, row failures, the end of life."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from dataclasses import fields, replace

import numpy as np
import pytest

from paged_conformance.benches.executor import BLOCK_SIZE, ExecutorBench, Lending, Running, tiny_need
from paged_conformance.benches.poisoned import POISON, write_poisoned
from paged_conformance.benches.sampler import params
from paged_conformance.marks import layer
from paged_conformance.oracles.llama import PlainLlama
from paged_conformance.oracles.sampler import log_softmax
from paged_core.api.batch import PromptRows
from paged_core.errors import EngineDeadError
from paged_core.testing.tiny import CONFIG, write_tiny_llama

pytestmark = layer("behaviour")

BOUND_S = 60
"""How long a dead executor may take to say so. Generous: it must end, on whatever machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model."""
    return write_tiny_llama(tmp_path_factory.mktemp("executor") / "tiny")


@pytest.fixture(scope="module")
def reference(folder):
    """Greedy continuations by the plain oracle."""
    return PlainLlama(folder, CONFIG)


@pytest.fixture(scope="module")
def lending(executor, folder):
    """Starts executors; closed afterwards."""
    opened = Lending(executor, tiny_need(executor, folder))
    yield opened
    opened.end()


@pytest.fixture
def bench(lending):
    """A started executor that nothing runs on."""
    return lending.bench()


def sequence(row, length, **values):
    """A greedy sequence with a prompt of its own."""
    prompt = [(7 * row + 11 * i + i * i) % 250 for i in range(length)]
    return Running(row, prompt, params(temperature=0, ignore_eos=True, **values), length)


def test_greedy_tokens_equal_the_plain_reference(bench, reference):
    """One batch of prompts around block edges, decoded together over further edges."""
    lengths = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 5)
    sequences = [sequence(row, length) for row, length in enumerate(lengths)]
    bench.decode(sequences, 20)
    bench.check(reference, sequences)


def test_a_prompt_computed_in_chunks_beside_decodes_gives_the_same_tokens(bench, reference):
    short, long = sequence(0, 3), sequence(1, 45)
    bench.decode([short], 4)
    for chunk in (7, 16, 1, 21):
        bench.step({short: 1, long: chunk})
    bench.decode([short, long], 6)
    bench.check(reference, [short, long])


def test_a_table_row_used_again_knows_nothing_of_its_predecessor(bench, reference):
    first = Running(0, list(range(20)), params(temperature=50.0, min_tokens=50), 20)
    bench.decode([first], 3)
    second = Running(0, [9, 8, 7, 6], params(temperature=0, ignore_eos=True), 4)
    plan = bench.plan({second: 4}, ended=[0])
    bench.commit({second: 4}, plan, bench.executor.collect(bench.executor.submit(plan)))
    bench.decode([second], 6)
    bench.check(reference, [second])


def test_a_plan_that_went_through_pickle_runs_the_same(bench, reference):
    """One control message a step: everything a step needs is in its plan, and a plan can be sent elsewhere."""
    each = sequence(0, 21)
    for _ in range(8):
        work = {each: len(each.tokens) - each.num_computed}
        plan = bench.plan(work)
        sent = pickle.loads(pickle.dumps(plan))
        bench.commit(work, plan, bench.executor.collect(bench.executor.submit(sent)))
    bench.check(reference, [each])


def test_a_plan_is_not_changed_by_running_it(bench):
    sequences = [sequence(0, 18), sequence(1, 5)]
    for _ in range(3):
        work = {each: len(each.tokens) - each.num_computed for each in sequences}
        plan = bench.plan(work)
        before = copy.deepcopy(plan)
        tables = bench.tables.copy()
        ticket = bench.executor.submit(plan)
        check_unchanged(before, plan, "submit")
        result = bench.executor.collect(ticket)
        check_unchanged(before, plan, "collect")
        assert np.array_equal(tables, bench.tables), "the executor wrote into the allocator's tables"
        bench.commit(work, plan, result)


def check_unchanged(before, plan, when):
    """Field by field, arrays by value."""
    for each in fields(plan):
        old, new = getattr(before, each.name), getattr(plan, each.name)
        same = np.array_equal(old, new) if isinstance(old, np.ndarray) else repr(old) == repr(new)
        assert same, f"{when} changed plan.{each.name} from {old} to {new}"


def test_tickets_are_collected_in_the_order_of_submission(bench):
    """As many as `max_in_flight` allows at once, over several rounds; each answers with its own step."""
    limit = bench.executor.max_in_flight
    assert limit >= 1, f"max_in_flight is {limit}; at least one step must fit"
    sequences = [sequence(row, 4 + row) for row in range(min(limit, 4))]
    for _ in range(3):
        works = [{each: len(each.tokens) - each.num_computed} for each in sequences]
        plans = [bench.plan(work) for work in works]
        tickets = [bench.executor.submit(plan) for plan in plans]
        for work, plan, ticket in zip(works, plans, tickets, strict=True):
            assert ticket.plan.step == plan.step, "a ticket carries the plan it was given for"
            bench.commit(work, plan, bench.executor.collect(ticket))


def test_a_step_measures_its_own_time(bench):
    result = bench.step({(each := sequence(0, 9)): len(each.tokens)})
    assert np.isfinite(result.elapsed_s), f"elapsed_s is {result.elapsed_s}"
    assert result.elapsed_s >= 0, f"elapsed_s is {result.elapsed_s}"


def test_several_draws_may_read_one_row_of_logits(bench, reference):
    """n > 1 after a prompt: each branch has a row of its own, all read the last prompt token."""
    first, work = sequence(0, 12), {}
    work[first] = 12
    plan = bench.plan(work)
    for row in (3, 5):
        plan.started.append(plan.started[0]._replace(row=row, branch=row))
    plan.sample_index = np.repeat(plan.sample_index, 3)
    plan.sample_positions = np.repeat(plan.sample_positions, 3)
    plan.sample_rows = np.array([0, 3, 5], dtype=np.int32)
    result = bench.executor.collect(bench.executor.submit(plan))
    tokens = result.tokens[:, 0].tolist()
    assert len(tokens) == 3, f"three draws, tokens {tokens}"
    first.tokens.append(tokens[0])
    bench.check(reference, [first])
    assert bench.simulated or tokens == [tokens[0]] * 3, f"three greedy draws from one row of logits gave {tokens}"


def test_a_row_of_nan_fails_alone(executor, reference, tmp_path):
    """One sequence meets an embedding of NaN; its neighbours' tokens are those of the sound model."""
    poisoned = write_poisoned(tmp_path / "poisoned")
    bench = ExecutorBench(executor, tiny_need(executor, poisoned))
    try:
        good = [sequence(0, 9), sequence(2, 17)]
        bad = Running(1, [1, 2, POISON, 3], params(temperature=0), 4)
        result = bench.step({good[0]: 9, bad: 4, good[1]: 17})
        if bench.simulated:  # it reads no weights, hence no NaN
            assert not result.failed
            assert len(bad.output) == 1
            return
        assert set(result.failed) == {1}, f"only row 1 holds NaN; failed rows: {result.failed}"
        assert result.failed[1].strip(), "a failed row needs a reason"
        assert not bad.output, "a failed draw must report num_tokens 0"
        bench.decode(good, 10)
        bench.check(reference, good)
    finally:
        bench.executor.close()


@pytest.mark.parametrize("count", [0, 4])
def test_prompt_log_probabilities_are_those_of_the_reference(bench, reference, count):
    """Over two chunks, with the rows and targets of each."""
    each = sequence(3, 30)
    entries = []
    for first, size in ((0, 18), (18, 12)):
        plan = bench.plan({each: size})
        index = np.arange(size if first == 0 else size - 1, dtype=np.int32)
        targets = np.array([each.tokens[first + i + 1] for i in index], dtype=np.int32)
        plan.prompt_rows = [PromptRows(3, first + 1, index, targets, count)]
        result = bench.executor.collect(bench.executor.submit(plan))
        bench.commit({each: size}, plan, result)
        assert set(result.prompt_logprobs) == {3}, f"row 3 asked; {sorted(result.prompt_logprobs)} were answered"
        position, top = result.prompt_logprobs[3]
        assert position == first + 1, f"first predicted position {position}, asked for {first + 1}"
        assert top.token_ids.shape == (len(targets), count), f"{top.token_ids.shape} for {len(targets)} x {count}"
        entries += list(zip(top.chosen, top.token_ids, top.logprobs, strict=True))
    assert len(entries) == 29, f"30 prompt tokens have 29 log-probabilities, not {len(entries)}"
    if bench.simulated:  # its log-probabilities are noise, in the same form
        assert all(chosen <= 0 and (np.diff(values) <= 0).all() for chosen, _, values in entries)
        return
    wanted = log_softmax(reference.logits(each.tokens[:30]).numpy())
    for i, (chosen, ids, values) in enumerate(entries):
        assert abs(chosen - wanted[i, each.tokens[i + 1]]) < 1e-3, f"log-probability of prompt token {i + 1}"
        assert np.allclose(values, wanted[i, ids], atol=1e-3), f"the best {count} at prompt token {i + 1}"


def test_capacity_needs_no_model_files_and_grows_with_memory(executor, folder):
    """Block counts never shrink with more memory, never exceed it, and both tiers count apart."""
    need = replace(tiny_need(executor, folder), model=str(folder / "not-here"))
    seen = []
    for factor in (1, 2, 3, 8):
        changed = replace(need, kv_memory_bytes=factor << 18, host_memory_bytes=(9 - factor) << 18)
        capacity = executor.create(changed).capacity()
        assert capacity.block_bytes > 0, f"a block of {capacity.block_bytes} bytes"
        if not executor.has("simulated"):
            for blocks, memory in (
                (capacity.num_blocks, changed.kv_memory_bytes),
                (capacity.num_host_blocks, changed.host_memory_bytes),
            ):
                assert 0 <= blocks * capacity.block_bytes <= memory, f"{capacity} does not fit into {memory} bytes"
        seen.append(capacity)
    device = [each.num_blocks for each in seen]
    host = [each.num_host_blocks for each in seen]
    assert device == sorted(device), f"blocks for 1, 2, 3 and 8 parts of memory: {device}"
    assert host == sorted(host, reverse=True), f"host blocks for 8, 7, 6 and 1 parts of memory: {host}"
    if not executor.has("simulated"):
        assert device[-1] > device[0], f"eight times the memory holds no more blocks: {device}"


def within_bound(action):
    """The exception that `action` raises, or None; a hang is a failure."""
    caught = []

    def run():
        try:
            action()
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    assert not thread.is_alive(), f"no answer within {BOUND_S} s"
    return caught[0] if caught else None


def test_closing_twice_is_harmless(bench):
    bench.decode([sequence(0, 5)], 2)
    for count in ("first", "second", "third"):
        error = within_bound(bench.executor.close)
        assert error is None, f"the {count} close raised {error!r}; close is idempotent"


def test_closing_an_executor_that_was_never_started_is_harmless(executor, folder):
    created = executor.create(tiny_need(executor, folder))
    assert within_bound(created.close) is None
    assert within_bound(created.close) is None


def test_a_step_after_close_is_refused_as_a_dead_engine(bench):
    bench.decode([each := sequence(0, 5)], 2)
    bench.executor.close()
    plan = bench.plan({each: 1})
    error = within_bound(lambda: bench.executor.collect(bench.executor.submit(plan)))
    assert isinstance(error, EngineDeadError), f"a step after close must raise EngineDeadError, got {error!r}"


def test_the_death_of_a_worker_is_told_within_a_bound(bench, reference):
    """Processes in which steps run are killed; the next step raises EngineDeadError. Without any, nothing can die."""
    workers = bench.executor.processes()
    bench.decode([each := sequence(0, 5)], 2)
    if not workers:
        bench.decode([each], 3)
        bench.check(reference, [each])
        return
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    plan = bench.plan({each: 1})
    error = within_bound(lambda: bench.executor.collect(bench.executor.submit(plan)))
    assert isinstance(error, EngineDeadError), f"the workers are dead; a step must raise EngineDeadError, got {error!r}"


def test_closing_leaves_no_process(bench):
    workers = bench.executor.processes()
    assert os.getpid() not in workers, "this process is none of the others"
    bench.decode([sequence(0, 5)], 2)
    assert bench.executor.processes() == workers, "processes of a started executor change"
    bench.executor.close()
    assert bench.executor.processes() == (), "a closed executor has no processes"
    deadline = time.monotonic() + BOUND_S
    while left := [worker for worker in workers if exists(worker)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.01)


def exists(process):
    """Whether there is such a process, be it one that nobody has waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
