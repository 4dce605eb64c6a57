"""Two steps in flight: submitted before the first is collected, they give what one by one gives.

Only executors whose `max_in_flight` is 2 meet these; one step at a time is as good an answer.
"""

from __future__ import annotations

import numpy as np
import pytest

from paged_conformance.benches.executor import BLOCK_SIZE, ExecutorBench, Moves, Running, tiny_need
from paged_conformance.benches.flight import TwoInFlight
from paged_conformance.benches.poisoned import POISON, write_poisoned
from paged_conformance.benches.sampler import params
from paged_conformance.marks import layer
from paged_conformance.oracles.llama import PlainLlama
from paged_core.testing.tiny import CONFIG, write_tiny_llama

pytestmark = layer("behaviour")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model."""
    return write_tiny_llama(tmp_path_factory.mktemp("flight") / "tiny")


@pytest.fixture(scope="module")
def reference(folder):
    """Greedy continuations by the plain oracle."""
    return PlainLlama(folder, CONFIG)


@pytest.fixture
def benches(executor, folder):
    """Starts executors; they are closed afterwards."""
    opened = []

    def start():
        opened.append(ExecutorBench(executor, tiny_need(executor, folder)))
        return opened[-1]

    yield start
    for bench in opened:
        bench.executor.close()


@pytest.fixture
def bench(executor, folder, benches):
    """A started executor, or None when it takes one step at a time."""
    created = executor.create(tiny_need(executor, folder))
    limit = created.max_in_flight
    created.close()
    assert limit in (1, 2), f"max_in_flight is {limit}: a plan names draws of the step before it and of none earlier"
    return benches() if limit == 2 else None


def sequence(row, length, **values):
    """A sequence with a prompt of its own; greedy unless told otherwise."""
    prompt = [(3 + 17 * row + 7 * i + i * i) % 250 for i in range(length)]
    return Running(row, prompt, params(**{"temperature": 0, "ignore_eos": True, **values}), length, seed=row + 1)


def test_greedy_tokens_equal_the_plain_reference(bench, reference):
    """Over block edges, with prompts that come in chunks beside decodes."""
    if bench is None:
        return
    flight = TwoInFlight(bench)
    first = [sequence(row, length) for row, length in enumerate((1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1))]
    flight.decode(first, 4)
    long = sequence(5, 45)
    for chunk in (7, 16, 1, 21):
        flight.submit({**dict.fromkeys(first, 1), long: chunk})
    flight.decode([*first, long], 14)
    flight.finish()
    assert len(first[0].output) == 22
    bench.check(reference, [*first, long], "two steps in flight")


def test_a_sequence_that_pauses_goes_on_with_its_own_token(bench, reference):
    """The draws of the step before belong to others; some tokens are known, some are not, in any order."""
    if bench is None:
        return
    flight = TwoInFlight(bench)
    one, two, three = (sequence(row, 5 + 9 * row) for row in range(3))
    flight.decode([one, two, three], 1)
    for work in ([three, one], [one, two], [two, one], [three], [two], [one, two, three], [three, one]):
        flight.submit(dict.fromkeys(work, 1))
    flight.finish()
    flight.decode([three, two, one], 3)
    flight.finish()
    bench.check(reference, [one, two, three], "steps of some sequences at a time")


def test_sampler_state_follows_the_order_of_submission(bench, benches):
    """Penalties count the draws of the step in flight; seeds draw what they draw one by one."""
    if bench is None:
        return
    kinds = (
        {"temperature": 1.0, "repetition_penalty": 1.7},
        {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 2.0, "top_k": 20, "min_tokens": 4},
        {"temperature": 0.0, "repetition_penalty": 2.0, "bad_words": [[7, 7]]},
    )
    runs = []
    for runner in (TwoInFlight(bench), benches()):
        sequences = [sequence(row, 6 + row, **values) for row, values in enumerate(kinds)]
        runner.decode(sequences, 24)
        if isinstance(runner, TwoInFlight):
            runner.finish()
        runs.append([each.output for each in sequences])
    assert runs[0] == runs[1], "a step that was submitted early drew other tokens than one that was not"


def test_moves_follow_what_the_step_before_writes(bench, reference):
    """A block is copied, and one is swapped out and in, by steps submitted while it is written."""
    if bench is None:
        return
    flight = TwoInFlight(bench)
    one, two = sequence(0, 20), sequence(1, 20)
    flight.decode([one, two], 1)
    old, new = bench.num_blocks[0] - 1, bench.free.pop()
    source = int(flight.tables[0, old])
    flight.tables[0, old] = new
    flight.submit({one: 1, two: 1}, Moves(copies=[(source, new)]))
    left = [int(block) for block in flight.tables[1, :2]]
    flight.submit({one: 1}, Moves(swap_out=list(zip(left, (3, 9), strict=True))))
    back = [bench.free.pop() for _ in left]
    flight.tables[1, :2] = back
    flight.submit({one: 1}, Moves(swap_in=list(zip((3, 9), back, strict=True))))
    flight.decode([one, two], 6)
    flight.finish()
    bench.check(reference, [one, two], "copied and swapped with a step in flight")


def test_a_row_used_again_while_its_predecessor_is_in_flight_knows_nothing_of_it(bench, benches):
    """The predecessor draws once more behind its end, the token that the newcomer begins with: it counts for one."""
    if bench is None:
        return
    alone, (first, mate) = benches(), (sequence(0, 20), sequence(1, 9))
    alone.decode([first, mate], 3)
    penalties = params(temperature=0, ignore_eos=True, frequency_penalty=2.0, presence_penalty=2.0)
    expected, second = (Running(row, first.tokens[:22], penalties, 22) for row in (2, 0))
    alone.decode([expected], 5)
    flight = TwoInFlight(bench)
    first, mate = sequence(0, 20), sequence(1, 9)
    flight.decode([first, mate], 3)
    flight.submit({second: 22, mate: 1}, ended=[0])
    flight.decode([second], 4)
    flight.finish()
    assert second.output == expected.output, "a row given to another sequence remembers a draw of the one before"


def test_a_draw_that_fails_harms_nobody_in_the_step_behind_it(executor, bench, reference, tmp_path):
    if bench is None or bench.simulated:
        return
    broken = ExecutorBench(executor, tiny_need(executor, write_poisoned(tmp_path / "poisoned")))
    try:
        flight = TwoInFlight(broken)
        good, bad = sequence(0, 9), Running(1, [1, 2, POISON, 3], params(temperature=0), 4)
        flight.submit({good: 9, bad: 4})
        flight.submit({good: 1, bad: 1})
        assert set(flight.collect().failed) == {1}, "only row 1 holds NaN"
        flight.decode([good], 8)
        flight.finish()
        broken.check(reference, [good], "beside a row that failed")
    finally:
        broken.executor.close()


def test_closing_drops_what_is_in_flight(bench):
    if bench is None:
        return
    flight = TwoInFlight(bench)
    flight.decode([sequence(0, 20)], 2)
    bench.executor.close()
    bench.executor.close()


def test_a_plan_is_not_changed_while_it_waits(bench):
    if bench is None:
        return
    flight = TwoInFlight(bench)
    each = sequence(0, 12)
    flight.decode([each], 1)
    plan = flight.submit({each: 1})
    source, tokens = np.copy(plan.token_source), plan.token_ids.copy()
    flight.finish()
    assert source.tolist() == plan.token_source.tolist() == [0]
    assert tokens.tolist() == plan.token_ids.tolist() == [0]
