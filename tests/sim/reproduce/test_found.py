from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from paged_core.errors import ConfigError
from paged_core.sim.reproduce.found import Found, mean
from paged_core.sim.reproduce.setup import Setup
from paged_core.sim.reproduce.tasks import QUICK, At, Curve
from tests.sim.reproduce.conftest import knee_at, made

if TYPE_CHECKING:
    from pathlib import Path

FAST, SLOW = Setup(), Setup("oracle")


@pytest.fixture
def found() -> Found:
    runs = {
        Curve(FAST, 1).key: knee_at(3.0),
        Curve(SLOW, 1).key: knee_at(1.5),
        At(FAST, 2.0).key: [made(rate=2.0, batched=10.0), made(rate=2.0, batched=20.0)],
    }
    return Found(QUICK, ("H4", "H6"), runs)


def test_a_run_at_a_rate_is_the_mean_over_its_traces(found: Found) -> None:
    assert found.at(FAST, 2.0).batched == pytest.approx(15.0)


def test_what_was_not_run_is_not_invented(found: Found) -> None:
    with pytest.raises(KeyError):
        found.at(FAST, 3.0)
    with pytest.raises(KeyError):
        found.at(FAST, 2.0, drain=True)


def test_rates_are_compared_at_equal_latency(found: Found) -> None:
    assert found.capacity(FAST) == pytest.approx(3.0)
    assert found.ratio(FAST, SLOW) == pytest.approx(2.0)
    assert found.capacity(FAST, 0.3) < 3.0 < found.capacity(FAST, 0.9)


def test_a_curve_that_never_passes_has_no_capacity(found: Found) -> None:
    assert math.isnan(found.capacity(FAST, 10.0))
    assert math.isnan(found.capacity(FAST, 0.01))


def test_results_survive_their_file(found: Found, tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    found.write(path)
    again = Found.read(path)
    again.write(other)
    assert (again.size, again.only) == (found.size, found.only)
    assert again.ratio(FAST, SLOW) == pytest.approx(found.ratio(FAST, SLOW))
    assert other.read_text() == path.read_text()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"runs": {}}', '{"size": {"no": 1}, "only": [], "runs": {}}'])
def test_a_file_of_something_else_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="holds no results"):
        Found.read(path)


def test_the_mean_of_one_is_itself() -> None:
    assert mean([made(rate=1.0, token=0.25)]).token == 0.25
