from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core.sim.reproduce.claims.every import chosen
from paged_core.sim.reproduce.reproduction import reproduce
from paged_core.sim.reproduce.tasks import QUICK, Size

if TYPE_CHECKING:
    from pathlib import Path

TINY = Size(minutes=0.1, traces=1, precision=0.3, quick=True)


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    claims, texts = chosen(["H1", "H15"]), []
    for jobs in (1, 2):
        path = tmp_path / f"{jobs}.json"
        reproduce(claims, TINY, jobs, lambda done, of, what: None).write(path)
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_runs_that_several_claims_need_are_made_once() -> None:
    told: list[tuple[int, int, str]] = []
    found = reproduce(chosen(["H1", "H2", "H4"]), TINY, 1, lambda *news: told.append(news))
    assert len(found.runs) == 4
    assert [(done, of) for done, of, _ in told] == [(i, 4) for i in (1, 2, 3, 4)]
    assert {what for _, _, what in told} == set(found.runs)


@pytest.fixture(scope="module")
def quick() -> dict[str, str]:
    """Verdicts of `paged-core reproduce --quick` by what was judged; required figures only."""
    claims = chosen(None)
    found = reproduce(claims, QUICK, 1, lambda done, of, what: None)
    return {f"{row.claim}: {row.what}": row.verdict for claim in claims for row in claim.rows(found) if row.required}


@pytest.mark.timeout(1800)  # a minute of one core, which on a busy machine is shared by many
def test_the_quick_run_reproduces_every_required_figure(quick: dict[str, str]) -> None:
    assert [what for what, verdict in quick.items() if verdict != "reproduced"] == []
    assert len(quick) > 25
