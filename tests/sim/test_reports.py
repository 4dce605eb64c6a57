"""Tables and plots of a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paged_core.bench.serve.figures import Quantiles
from paged_core.errors import ConfigError
from paged_core.sim.capacity import Criterion
from paged_core.sim.measures import Measures, Memory, Window
from paged_core.sim.plots import draw
from paged_core.sim.sweep import Point
from paged_core.sim.tables import tables_of

if TYPE_CHECKING:
    from pathlib import Path

TIMES = Quantiles(0.4, 0.3, 0.6, 0.7, 0.8, 0.9)
SOME = Measures(
    window=Window(0.0, 10.0),
    num_requests=20,
    num_finished=20,
    num_rejected=0,
    num_cut=0,
    normalized=TIMES,
    ttft=TIMES,
    tpot=TIMES,
    itl=TIMES,
    e2e=TIMES,
    requests_per_s=2.0,
    output_per_s=500.0,
    num_good=None,
    batch=7.0,
    sequences=7.0,
    waiting=1.0,
    preempted=0.0,
    busy=0.9,
    memory=Memory(0.2, 0.1, 0.5, 0.9),
    saved=0.0,
    cached=0.0,
    preemptions=3,
)
NONE = replace(SOME, num_finished=0, normalized=None, ttft=None, tpot=None, itl=None, e2e=None)


def point(name: str, rate: float, measures: Measures = SOME) -> Point:
    return Point(name, rate, measures, "made up", 0, {}, 10, 70, 0.1)


def slow(seconds: float) -> Measures:
    return replace(SOME, normalized=replace(TIMES, mean=seconds))


def test_a_rate_alone_has_no_capacity_and_several_have() -> None:
    assert len(tables_of([point("a", 1.0)], Criterion())) == 3
    found = tables_of([point("a", 1.0), point("a", 2.0, slow(5.0)), point("b", 1.0, slow(0.9))], Criterion())[3]
    assert [row[0] for row in found.rows] == ["a", "b"]
    assert found.rows[0][1] == pytest.approx(1.088, abs=0.001)
    assert found.rows[1][1:] == (1.0, "below", None)


def test_capacity_wants_the_slo_where_there_is_one() -> None:
    few = replace(SOME, num_good=17)
    most = replace(SOME, num_good=18)
    table = tables_of([point("a", 1.0, most), point("a", 2.0, most), point("a", 4.0, few)], Criterion(good=0.9))[3]
    assert table.rows[0][1] == 2.0
    assert "90% of the requests within the SLO" in table.title


def test_bounds_and_reasons_are_said_under_the_tables() -> None:
    rejected = replace(point("a", 1.0, replace(SOME, num_finished=19)), reasons={"prompt": 4})
    latency, throughput, _ = tables_of([rejected], Criterion())
    assert "lower bound" in latency.notes[0]
    assert throughput.notes == ["a at 1/s, rejected or cut: 4 for prompt."]


def test_tables_are_json_even_of_a_run_without_answers_at_an_infinite_rate() -> None:
    for table in tables_of([point("a", float("inf"), NONE), point("a", 1.0)], Criterion()):
        assert "Infinity" not in json.dumps(table.as_json())
        assert "NaN" not in json.dumps(table.as_json())


@pytest.mark.parametrize(
    "points",
    [
        [point("a", 1.0), point("a", 2.0), point("b", 1.0, slow(9.0)), point("b", 2.0)],
        [point("a", 1.0), point("b", 1.0)],
        [point("a", 1.0, replace(SOME, num_good=5)), point("a", 2.0, replace(SOME, num_good=0))],
        [point("a", 1.0), point("b", 2.0)],
        [point("a", 1.0, NONE), point("a", float("inf"))],
        [point("a", float("inf"))],
    ],
)
def test_whatever_was_run_can_be_drawn(points: list[Point], tmp_path: Path) -> None:
    draw(points, "title", tmp_path / "x.svg")
    assert "</svg>" in (tmp_path / "x.svg").read_text()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.nothing"):
        draw([point("a", 1.0)], "title", tmp_path / "x.nothing")
