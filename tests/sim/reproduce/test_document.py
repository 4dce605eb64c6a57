"""The page says what the results say: of results made by hand, and of those that are committed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paged_core.sim.reproduce.claims.every import IDS, chosen
from paged_core.sim.reproduce.document import counts, render
from paged_core.sim.reproduce.found import Found
from paged_core.sim.reproduce.plots import FIGURES
from paged_core.sim.reproduce.reasons import UNKNOWN, reason
from paged_core.sim.reproduce.setup import Setup
from paged_core.sim.reproduce.tasks import FULL, At
from tests.sim.reproduce.conftest import found_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE, RESULTS = DOCS / "reproduction.md", DOCS / "reproduction.json"
CHEAP = [
    At(Setup(), 1.9, drain=True),
    At(Setup(preempt="swap"), 1.9, drain=True),
    At(Setup(mode="sample", width=2), 2.0),
    At(Setup(lengths="alpaca", mode="beam", width=2), 30.0),
]


def page(knee: Any) -> str:
    (claim,) = chosen(["H6"])
    return render(found_of(claim, lambda task: {}, knee), "r.json", "pictures")


def test_a_miss_is_shown_as_missed_and_has_a_line_of_its_own() -> None:
    text = page(lambda setup: 1.0)
    assert "**0 of 4 required figures are reproduced**" in text
    assert re.search(r"\| H6 \| rate of vLLM over Orca \(Max\), OPT-13B, ShareGPT \| .* \| \*\*missed\*\* \|", text)
    assert "## What is missed, and why" in text


def test_what_is_reproduced_needs_no_reason() -> None:
    text = page(lambda setup: {"vllm": 4.0, "oracle": 2.0, "max": 1.0, "ft": 0.5}.get(setup.kind, 1.5))
    assert "**4 of 4 required figures are reproduced**, and 5 of 5 others" in text
    assert "missed**" not in text
    assert "## What is missed" not in text


def test_what_is_not_required_is_marked() -> None:
    text = page(lambda setup: 1.0)
    assert "FasterTransformer, OPT-13B, ShareGPT° |" in text
    assert "Orca (Oracle), OPT-13B, ShareGPT |" in text


def test_rates_are_listed_at_several_latencies_beside_the_papers_knees() -> None:
    text = page(lambda setup: 2.0)
    (line,) = [one for one in text.splitlines() if one.startswith("| opt-13b sharegpt | vLLM |")]
    assert "2.00" in line
    assert line.endswith("| ~1.9 |")


def test_pictures_are_those_of_the_claims_that_were_run() -> None:
    assert re.findall(r"\]\((pictures/.*?)\)", page(lambda setup: 1.0)) == ["pictures/fig12.png"]


@pytest.fixture(scope="module")
def committed() -> Found:
    return Found.read(RESULTS)


def test_the_committed_page_is_what_the_committed_results_say(committed: Found) -> None:
    assert render(committed, RESULTS.name, "images/reproduction") == PAGE.read_text()


def test_the_committed_results_are_of_a_full_run(committed: Found) -> None:
    assert (committed.size, committed.only) == (FULL, tuple(IDS))


@pytest.mark.parametrize("task", CHEAP, ids=lambda task: task.key)
def test_the_committed_results_are_what_the_engine_gives_today(committed: Found, task: At) -> None:
    """The first traces of some: of one sequence a request, of several samples, of beams, of swaps. A change of what
    the engine decides is welcome, and the page is then made again."""
    (found,) = task.run(replace(FULL, traces=1))
    assert found.as_json() == committed.runs[task.key][0].as_json()


def test_every_required_figure_is_reproduced_in_the_committed_results(committed: Found) -> None:
    rows = [row for claim in chosen(None) for row in claim.rows(committed)]
    assert [row.what for row in rows if row.required and row.verdict != "reproduced"] == []
    required, good, others, _ = counts(rows)
    assert required == good > 30
    assert others > 20


def test_every_miss_in_the_committed_results_has_its_reason(committed: Found) -> None:
    missed = [row for claim in chosen(None) for row in claim.rows(committed) if row.verdict == "missed"]
    assert [row.what for row in missed if reason(row) == UNKNOWN] == []


@pytest.mark.parametrize("name", [one.name for one in FIGURES])
def test_every_picture_is_committed(name: str) -> None:
    path = DOCS / "images/reproduction" / f"{name}.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 150_000
