from __future__ import annotations

import math

import pytest

from paged_core.sim.reproduce.verdict import Interval, Points, Relative, Row, Tolerance, shown


@pytest.mark.parametrize(
    ("tolerance", "inside", "outside"),
    [
        (Relative(20.0, 0.1), (18.0, 20.0, 22.0), (17.99, 22.01, math.nan)),
        (Relative(10.0, 0.1, 2.0), (8.0, 12.0), (7.99, 12.01)),
        (Relative(50.0, 0.1, 2.0), (45.0, 55.0), (44.9, 55.1)),
        (Points(6.0, 3.0), (3.0, 9.0), (2.99, 9.01, math.nan)),
        (Interval(1.7, 2.7), (1.7, 2.7), (1.69, 2.71, math.nan)),
        (Interval(2.0, 4.0, 0.1), (1.8, 4.4), (1.79, 4.41)),
        (Interval(0.9, math.inf), (0.9, 1e9), (0.89,)),
        (Interval(-math.inf, 1), (-5.0, 1.0), (1.01,)),
    ],
)
def test_a_tolerance_holds_up_to_its_ends(
    tolerance: Tolerance, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(tolerance.holds(one) for one in inside)
    assert not any(tolerance.holds(one) for one in outside)


@pytest.mark.parametrize(
    ("tolerance", "unit", "text"),
    [
        (Relative(20.0, 0.1), "%", "±10 %"),
        (Relative(10.0, 0.1, 2.0), "%", "±2 points"),
        (Relative(50.0, 0.1, 2.0), "%", "±10 %"),
        (Points(6.0, 3.0), "%", "±3 points"),
        (Interval(1.7, 2.7, 0.1), "x", "1.70x to 2.70x, ±10 % at the ends"),
        (Interval(0.0, 4.0), "%", "at most 4.0 %"),
        (Interval(-math.inf, 1.0), "x", "at most 1.00x"),
        (Interval(0.9, math.inf), "x", "at least 0.90x"),
        (Interval(1.0, 1.0), "", "1.00"),
    ],
)
def test_a_tolerance_says_what_it_holds_to(tolerance: Tolerance, unit: str, text: str) -> None:
    assert tolerance.text(unit) == text  # type: ignore[arg-type]


def test_a_row_without_tolerance_is_printed_only() -> None:
    row = Row("H3", "waste", "60-80 %", 70.0, "%")
    assert (row.verdict, row.tolerance_text) == ("printed only", "-")


def test_a_row_is_judged_by_its_tolerance() -> None:
    good, bad = (Row("H1", "share", "20 %", ours, "%", Relative(20.0, 0.1)) for ours in (19.0, 17.0))
    assert (good.verdict, bad.verdict) == ("reproduced", "missed")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.846, "x", "1.85x"),
        (20.44, "%", "20.4 %"),
        (132.44, "", "132.4"),
        (15728.2, "", "15728"),
        (math.nan, "x", "-"),
    ],
)
def test_values_are_shown_with_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text  # type: ignore[arg-type]
