"""The leaderboard: who takes part, what is the same for all, and that the page is what the command makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paged_core.bench.report import markdown
from paged_core.errors import ConfigError
from paged_core.sim.leaderboard import BOARDS, boards_named, conditions, entrants, play
from paged_core.workload.plan import Workload

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/leaderboard.md").read_text()
SJF = str(ROOT / "examples/paged-sched-sjf/paged_sched_sjf")
PLUGINS = {path.parent.name.removeprefix("sched_") for path in (ROOT / "plugins").glob("sched_*/pyproject.toml")}
(SHAREGPT,) = boards_named(["sharegpt"])


def small(**changes):
    """The first board with a tenth of its requests."""
    load = replace(SHAREGPT.load, workload=Workload(num_requests=60))
    return replace(SHAREGPT, **{"load": load, **changes})


def test_every_scheduler_of_this_repository_and_the_third_partys_take_part():
    found = {one.name.removeprefix("sched_") for one in entrants([SJF])}
    assert found >= PLUGINS | {"sjf"}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_page_has_every_scheduler_on_every_board_as_it_is_defined_now(board):
    chapter = PAGE.partition(f"## {board.title}\n")[2].partition("\n## ")[0]
    assert conditions(board) in chapter
    rows = [line.split("|")[1].strip() for line in chapter.splitlines() if line.startswith("| ")]
    assert sorted(rows[2:]) == sorted(PLUGINS | {"sjf"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peak", "no_evict"])
def test_a_figure_of_the_page_can_be_found_again(name):
    """A row all of whose figures hang on the cost model, the engine and the scheduler, and one with unfinished ones."""
    row = markdown(play(SHAREGPT, entrants(names=[name]), None)).splitlines()[-1]
    assert row in PAGE, "run the command that docs/leaderboard.md names"


def test_the_same_board_has_the_same_figures_and_the_best_goodput_is_first():
    board, few = small(rate=4.0), entrants([SJF], ["fcfs", "no_evict", "sjf"])
    table, again = (play(board, few, None, [SJF]) for _ in range(2))
    assert table.rows == again.rows
    goodput = [row[2] for row in table.rows]
    assert goodput == sorted(goodput, reverse=True)
    assert {row[0] for row in table.rows} == {"fcfs", "no_evict", "sjf"}
    assert [row[1] for row in table.rows if row[0] != "sjf"] == ["paged-core"] * 2


def test_who_does_not_cut_prompts_gets_a_budget_for_whole_ones():
    """A prompt of 1,000 tokens and a budget of half of that: whoever had to wait for ever would finish nothing."""
    base = replace(SHAREGPT.system, token_budget=512)
    load = replace(SHAREGPT.load, workload=Workload(lengths="fixed", fixed=(1000, 4), num_requests=8))
    table = play(small(system=base, load=load), entrants(names=["prefill_first", "fcfs"]), None)
    assert [row[-1] for row in table.rows] == [0, 0]


def test_what_is_not_there_is_said_before_anything_runs(tmp_path):
    (conv,) = boards_named(["azure-conv"])
    with pytest.raises(ConfigError, match=r"azure-conv needs the trace azure2023_conv.csv: no folder of traces"):
        conv.load_from(None)
    with pytest.raises(ConfigError, match="does not hold it"):
        conv.load_from(tmp_path)
    with pytest.raises(ConfigError, match=r"no board 'azure': sharegpt, azure-conv"):
        boards_named(["azure"])
    with pytest.raises(ConfigError, match="no scheduler sched_sfj"):
        entrants(names=["sfj"])


def test_requests_that_are_still_there_after_a_while_are_said_to_be(monkeypatch):
    monkeypatch.setattr("paged_core.sim.leaderboard._PATIENCE_S", 2.0)
    table = play(small(rate=1000.0), entrants(names=["no_evict"]), None)
    ((*_, num_unfinished),) = table.rows
    assert num_unfinished > 0
    assert table.notes == ["Unfinished: 2 seconds after the last arrival. They count with the time they have waited."]
