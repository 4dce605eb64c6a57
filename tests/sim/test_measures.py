"""Measures: what is said of runs that are short enough to be reckoned by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.bench.serve.figures import Slo
from paged_core.sim.measures import Window, measure
from paged_core.sim.outcome import Outcome, Requests, Steps
from paged_core.sim.system import System

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAN = math.nan
ALL = 0.0  # warm-up: none


def requests(rows: Sequence[tuple[float, float, float, int, int]], **columns: Any) -> Requests:
    """Of (arrival, first token, end, prompt, output); other columns are zero unless given."""
    arrival, first, finish = (np.array([row[i] for row in rows], dtype=float) for i in range(3))
    prompt, output = (np.array([row[i] for row in rows], dtype=np.int64) for i in (3, 4))
    rest = {
        name: np.zeros(len(rows), dtype=np.int64) for name in ("generated_tokens", "num_preemptions", "cached_tokens")
    }
    flags = {name: np.zeros(len(rows), dtype=bool) for name in ("rejected", "cut")}
    told = {name: np.array(column) for name, column in columns.items()}
    made: dict[str, Any] = {**rest, **flags, "client": np.full(len(rows), ""), **told}
    return Requests(arrival, first, finish, prompt, output, **made)


def steps(rows: Sequence[Mapping[str, float]]) -> Steps:
    """Of columns by name; those not named are zero, but for a pool of 100 slots."""
    columns = {}
    for name in Steps.__dataclass_fields__:
        default = 100 if name == "total_slots" else 0
        kind = float if name.endswith("_s") else np.int64
        columns[name] = np.array([row.get(name, default) for row in rows], dtype=kind)
    return Steps(**columns)


def outcome(asked: Requests, ran: Steps, end_s: float | None = None, block_size: int = 16) -> Outcome:
    """A run that ended with its last step."""
    last_s = float((ran.begin_s + ran.elapsed_s).max(initial=0.0)) if end_s is None else end_s
    return Outcome(System(block_size=block_size), asked, ran, last_s, {}, "auto", {}, {}, 0, 0, 0.0)


def whole(run: Outcome, slo: Slo | None = None, end_s: float = 100.0) -> Any:
    """Measured from 0 to `end_s`."""
    return measure(run, slo, Window(0.0, end_s))


BUSY = steps([{"begin_s": 0.0, "elapsed_s": 10.0, "num_groups": 1, "num_seqs": 1, "decode_tokens": 1}])


def test_latencies_are_those_of_the_paper_and_of_a_caller() -> None:
    found = whole(outcome(requests([(0, 1, 5, 7, 5), (2, 4, 10, 9, 1)]), BUSY))
    assert found.latency == pytest.approx((5 / 5 + 8 / 1) / 2)
    assert found.ttft.mean == pytest.approx((1 + 2) / 2)
    assert found.e2e.most == 8
    assert (found.tpot.mean, found.tpot.most) == (1.0, 1.0)  # (5 - 1) / 4; one token has none
    assert found.all_finished


def test_who_is_not_finished_makes_the_latency_worse_and_is_never_good() -> None:
    slo = Slo.parse("e2e:1000000")
    done = [(0.0, 1.0, 2.0, 7, 10), (0.0, 1.0, 3.0, 7, 10)]
    stuck = whole(outcome(requests([*done, (0, NAN, NAN, 7, 10)]), BUSY, end_s=10.0), slo)
    assert (stuck.num_requests, stuck.num_finished) == (3, 2)
    assert not stuck.all_finished
    assert stuck.latency == pytest.approx((0.2 + 0.3 + 1.0) / 3)
    assert stuck.ttft.most == stuck.e2e.most == 10
    assert (stuck.num_good, stuck.good_share) == (2, pytest.approx(2 / 3))
    assert stuck.latency > whole(outcome(requests(done), BUSY, end_s=10.0)).latency


def test_without_any_request_nothing_is_said_and_the_latency_is_no_good_one() -> None:
    empty = measure(outcome(requests([]), steps([])))
    assert empty.latency == math.inf
    assert (empty.normalized, empty.ttft, empty.tpot, empty.itl) == (None, None, None, None)
    assert (empty.requests_per_s, empty.batch, empty.memory.token) == (0, 0, 0)


def test_who_could_never_run_counts_against_the_slo_but_has_no_latency() -> None:
    rows = requests([(0, 1, 2, 7, 10), (0, NAN, NAN, 7, 10)], rejected=[False, True])
    found = whole(outcome(rows, BUSY), Slo.parse("ttft:2000"))
    assert (found.num_requests, found.num_rejected, found.num_finished) == (1, 1, 1)
    assert found.latency == pytest.approx(0.2)
    assert found.good_share == 0.5
    assert found.all_finished


def test_an_answer_that_was_cut_is_not_within_the_slo() -> None:
    found = whole(outcome(requests([(0, 1, 2, 7, 10)], cut=[True]), BUSY), Slo.parse("ttft:2000"))
    assert (found.num_cut, found.num_good) == (1, 0)


@pytest.mark.parametrize(
    ("limits", "good"),
    [("ttft:1000", 2), ("ttft:999", 0), ("tpot:1000", 2), ("tpot:999", 1), ("ttft:1000,tpot:999", 1), ("e2e:2000", 1)],
)
def test_good_is_who_keeps_every_limit_and_reaching_one_keeps_it(limits: str, good: int) -> None:
    found = whole(outcome(requests([(0, 1, 5, 7, 5), (4, 5, 5, 7, 1)]), BUSY), Slo.parse(limits))
    assert found.num_good == good
    assert found.goodput_per_s == pytest.approx(good / 100)


def test_the_window_opens_after_the_warm_up_and_closes_with_the_last_arrival() -> None:
    run = outcome(requests([(10, 11, 12, 7, 5), (20, 21, 22, 7, 5), (110, 300, 400, 7, 5)]), BUSY, end_s=400.0)
    assert Window.of(run) == Window(20.0, 110.0)
    assert Window.of(run, ALL) == Window(10.0, 110.0)
    found = measure(run)
    assert found.num_requests == 2
    assert found.requests_per_s == pytest.approx(1 / 90)  # the last one ends outside


def test_a_run_that_ended_before_the_last_arrival_is_measured_up_to_its_end() -> None:
    """Who would have come later is neither counted nor waited for."""
    rows = requests([(10, 11, 12, 7, 5), (40, NAN, NAN, 7, 5), (110, NAN, NAN, 7, 5)])
    run = outcome(rows, BUSY, end_s=60.0)
    assert Window.of(run) == Window(15.0, 60.0)
    found = measure(run)
    assert (found.num_requests, found.num_finished) == (1, 0)
    assert found.ttft is not None
    assert found.ttft.mean == 20
    before_anybody = outcome(rows, BUSY, end_s=5.0)
    assert Window.of(before_anybody) == Window(5.0, 5.0)
    assert measure(before_anybody).num_requests == 0


def test_arrivals_that_come_at_once_are_measured_to_the_end_of_their_work() -> None:
    run = outcome(requests([(0, 1, 4, 7, 5), (0, 1, 5, 7, 5)]), steps([{"begin_s": 0.0, "elapsed_s": 5.0}]))
    assert Window.of(run) == Window(0.0, 5.0)
    assert measure(run).requests_per_s == pytest.approx(2 / 5)
    assert measure(run).output_per_s == pytest.approx(10 / 5)


def test_means_are_over_time_and_idle_time_counts() -> None:
    run = steps(
        [
            {"begin_s": 0.0, "elapsed_s": 1.0, "num_groups": 9, "num_waiting": 9, "token_slots": 90},
            {
                "begin_s": 5.0,
                "elapsed_s": 3.0,
                "num_groups": 1,
                "num_preempted": 2,
                "used_slots": 40,
                "token_slots": 10,
            },
        ]
    )
    found = whole(outcome(requests([(0, 1, 1, 7, 5)]), run), end_s=10.0)
    assert found.batch == pytest.approx((9 * 1 + 1 * 3) / 10)
    assert found.waiting == pytest.approx(0.9)
    assert found.preempted == pytest.approx(0.6)
    assert found.busy == pytest.approx(0.4)
    assert found.memory.token == pytest.approx((0.9 * 1 + 0.1 * 3) / 10)


def test_a_step_counts_only_while_it_is_within_the_window() -> None:
    run = steps(
        [{"begin_s": 0.0, "elapsed_s": 4.0, "num_groups": 8}, {"begin_s": 4.0, "elapsed_s": 4.0, "num_groups": 2}]
    )
    found = measure(outcome(requests([(2, 3, 4, 7, 5)]), run), None, Window(3.0, 5.0))
    assert found.batch == pytest.approx((8 + 2) / 2)
    assert found.busy == pytest.approx(1.0)


def test_memory_is_split_into_shares_that_sum_to_one() -> None:
    held = {"token_slots": 20, "reserved_slots": 13, "internal_slots": 57, "used_slots": 95}
    found = whole(outcome(requests([(0, 1, 1, 7, 5)]), steps([{"begin_s": 0.0, "elapsed_s": 1.0, **held}])), end_s=1.0)
    memory = found.memory
    assert (memory.token, memory.reserved, memory.internal) == pytest.approx((0.20, 0.13, 0.57))
    assert memory.rest == pytest.approx(0.10)
    assert memory.waste == pytest.approx(75 / 95)


def test_sharing_is_measured_against_the_blocks_that_everybody_alone_would_need() -> None:
    run = steps([{"begin_s": 0.0, "elapsed_s": 1.0, "used_slots": 48, "token_slots": 48, "saved_blocks": 1}])
    assert whole(outcome(requests([(0, 1, 1, 7, 5)]), run), end_s=1.0).saved == pytest.approx(1 / 4)


def test_prefix_hits_and_preemptions_are_those_of_the_requests_in_the_window() -> None:
    rows = requests([(0, 1, 2, 100, 5), (5, 6, 7, 50, 5)], cached_tokens=[0, 25], num_preemptions=[7, 2])
    found = measure(outcome(rows, BUSY), None, Window(4.0, 6.0))
    assert found.cached == pytest.approx(0.5)
    assert found.preemptions == 2


def test_a_prompt_between_two_decodes_makes_everybody_wait_for_a_token() -> None:
    prompt, decode = {"prefill_tokens": 100}, {"decode_tokens": 3}
    run = steps(
        [
            {"begin_s": 0.0, "elapsed_s": 5.0, **prompt},  # nobody decodes yet
            {"begin_s": 5.0, "elapsed_s": 1.0, **decode},
            {"begin_s": 6.0, "elapsed_s": 1.0, **decode},
            {"begin_s": 7.0, "elapsed_s": 5.0, **prompt},
            {"begin_s": 12.0, "elapsed_s": 1.0, **decode},
            {"begin_s": 50.0, "elapsed_s": 1.0, "decode_tokens": 1},  # after a rest: nobody has waited
        ]
    )
    found = whole(outcome(requests([(0, 1, 1, 7, 5)]), run)).itl
    assert found.mean == pytest.approx((3 * 1 + 3 * 1 + 3 * 6 + 1 * 1) / 10)
    assert (found.p50, found.p90, found.most) == (1.0, 6.0, 6.0)


def test_tokens_of_a_request_are_spread_over_its_time() -> None:
    found = measure(outcome(requests([(0, 0, 10, 7, 100)]), BUSY), None, Window(0.0, 5.0))
    assert found.output_per_s == pytest.approx(50 / 5)


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0, 5), st.floats(0, 50), st.integers(1, 500)), min_size=1, max_size=30
    )
)
def test_littles_law_holds_of_whatever_ran(drawn: list[tuple[float, float, float, int]]) -> None:
    """Requests in the system, on average over all time, are the rate of arrivals times their mean time in it."""
    rows = requests([(at, at + first, at + first + rest, 1, tokens) for at, first, rest, tokens in drawn])
    edges = np.unique(np.concatenate([rows.arrival_s, rows.finish_s, [0.0]]))
    inside = [int(((rows.arrival_s <= at) & (rows.finish_s > at)).sum()) for at in edges[:-1]]
    ran = [
        {"begin_s": begin, "elapsed_s": end - begin, "num_groups": count}
        for begin, end, count in zip(edges[:-1], edges[1:], inside, strict=True)
    ]
    end_s = max(float(edges[-1]), 1.0)
    found = measure(outcome(rows, steps(ran)), None, Window(0.0, end_s))
    assert found.batch == pytest.approx(len(drawn) / end_s * found.e2e.mean, abs=1e-6)  # type: ignore[union-attr]
    assert found.requests_per_s == pytest.approx(len(drawn) / end_s)
    assert found.ttft.most <= found.e2e.most + 1e-9  # type: ignore[union-attr]
