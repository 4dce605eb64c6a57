"""Plans: who arrives when, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core.errors import ConfigError
from paged_core.workload.plan import Workload, plan_of

if TYPE_CHECKING:
    from pathlib import Path

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,5\n2,300,5\n4,40,5\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.csv"
    path.write_text(TRACE)
    return path


def test_lengths_are_the_same_at_every_rate_and_times_are_scaled() -> None:
    slow, fast = (plan_of(Workload(num_requests=20), rate).rows for rate in (1.0, 4.0))
    assert [(row.prompt_tokens, row.output_tokens) for row in slow] == [
        (r.prompt_tokens, r.output_tokens) for r in fast
    ]
    assert [row.at_s for row in fast] == pytest.approx([row.at_s / 4 for row in slow])


def test_lengths_are_the_same_however_many_are_needed() -> None:
    few, many = (plan_of(Workload(num_requests=count), 1.0).rows for count in (20, 700))
    assert many[:20] == few


def test_lengths_that_are_too_long_are_drawn_again() -> None:
    rows = plan_of(Workload(num_requests=300, most_tokens=200), 1.0).rows
    assert len(rows) == 300
    assert max(row.prompt_tokens + row.output_tokens for row in rows) <= 200


def test_a_seed_gives_the_same_plan_again() -> None:
    first, again, other = (plan_of(Workload(num_requests=9, seed=seed), 1.0) for seed in (5, 5, 6))
    assert first == again
    assert first.rows != other.rows


def test_fixed_lengths_at_constant_gaps() -> None:
    rows = plan_of(Workload("fixed", (7, 9), burstiness=float("inf"), num_requests=2), 2.0).rows
    assert [(row.at_s, row.prompt_tokens, row.output_tokens) for row in rows] == [(0.5, 7, 9), (1.0, 7, 9)]


@pytest.mark.parametrize("burstiness", [0.1, 1.0, float("inf")])
def test_a_duration_bounds_arrivals_and_is_filled(burstiness: float) -> None:
    plan = plan_of(Workload("fixed", burstiness=burstiness, duration_s=30.0, num_requests=10**6), 2.0)
    assert plan.rows[-1].at_s <= 30.0
    assert plan.rows[-1].at_s > 20.0
    assert plan_of(Workload("fixed", duration_s=30.0, num_requests=5), 2.0).rows[-1].at_s < 30


def test_a_trace_goes_at_its_own_pace_or_at_the_rate(trace: Path) -> None:
    assert [row.at_s for row in plan_of(Workload(trace=trace), None).rows] == [0, 1, 2, 4]
    assert [row.at_s for row in plan_of(Workload(trace=trace), 1.5).rows] == [0, 0.5, 1, 2]


def test_the_rate_is_that_of_the_requests_taken(trace: Path) -> None:
    plan = plan_of(Workload(trace=trace, num_requests=3, duration_s=0.9), 4.0)
    assert [row.at_s for row in plan.rows] == [0, 0.25, 0.5]
    assert [row.at_s for row in plan_of(Workload(trace=trace, duration_s=0.6), 3.0).rows] == [0, 0.25, 0.5]


def test_a_burst_cannot_be_stretched(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,10,5\n5,20,5\n9,20,5\n")
    with pytest.raises(ConfigError, match="first 2 requests arrive at once"):
        plan_of(Workload(trace=path, num_requests=2), 1.0)
    assert [row.at_s for row in plan_of(Workload(trace=path, num_requests=2), float("inf")).rows] == [0, 0]
    assert [row.at_s for row in plan_of(Workload(trace=path, num_requests=1), 1.0).rows] == [0]


def test_lengths_of_a_trace_shrink_by_a_factor_that_is_named(trace: Path) -> None:
    plan = plan_of(Workload(trace=trace, length_factor=0.1), None)
    assert [(row.prompt_tokens, row.output_tokens) for row in plan.rows] == [(1, 1), (2, 1), (30, 1), (4, 1)]
    assert plan.source == "trace small.csv, lengths x 0.1"


def test_what_is_too_long_is_left_out_and_counted(trace: Path) -> None:
    plan = plan_of(Workload(trace=trace, most_tokens=100), None)
    assert [row.prompt_tokens for row in plan.rows] == [10, 20, 40]
    assert plan.num_too_long == 1
    assert plan_of(Workload(trace=trace, most_tokens=100, num_requests=2), None).num_too_long == 0
    assert plan_of(Workload(trace=trace, most_tokens=100, duration_s=3.0), None).num_too_long == 1
    assert plan_of(Workload(trace=trace, most_tokens=24, duration_s=0.5), None).num_too_long == 0


def test_lengths_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n3,4\n5,6\n")
    rows = plan_of(Workload(str(path), num_requests=30), 1.0).rows
    assert {(row.prompt_tokens, row.output_tokens) for row in rows} == {(3, 4), (5, 6)}


def test_nothing_to_offer_is_said_with_its_reason(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of at most 3 tokens"):
        plan_of(Workload(trace=trace, most_tokens=3), None)
    with pytest.raises(ConfigError, match=r"none is due within 0\.001 s"):
        plan_of(Workload("fixed", duration_s=0.001, burstiness=float("inf")), 1.0)
    with pytest.raises(ConfigError, match="none of at most 4 tokens"):
        plan_of(Workload(most_tokens=4), 1.0)
    with pytest.raises(ConfigError, match="more than 255 together"):
        plan_of(Workload("fixed", most_tokens=255), 1.0)
    with pytest.raises(ConfigError, match="is no file of prompt_tokens"):
        plan_of(Workload(str(tmp_path / "absent")), 1.0)


def test_a_slice_of_a_trace_begins_at_zero(trace: Path) -> None:
    plan = plan_of(Workload(trace=trace, slice_s=(1.0, 4.0)), None)
    assert [(row.at_s, row.prompt_tokens) for row in plan.rows] == [(0, 20), (1, 300)]
    assert plan.source == "trace small.csv from 1 to 4 s"
