"""`paged-core leaderboard`: a scheduler of somebody else beside ours, shown and written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from paged_core.cli import main
from paged_core.cli.leaderboard import page
from paged_core.sim import leaderboard
from paged_core.workload.plan import Workload

if TYPE_CHECKING:
    from click.testing import Result

SJF = str(Path(__file__).resolve().parents[2] / "examples/paged-sched-sjf/paged_sched_sjf")


@pytest.fixture(autouse=True)
def one_small_board(monkeypatch: pytest.MonkeyPatch) -> None:
    board = leaderboard.BOARDS[0]
    load = replace(board.load, workload=Workload(num_requests=20))
    monkeypatch.setattr(leaderboard, "BOARDS", (replace(board, load=load), *leaderboard.BOARDS[1:]))


def leaderboard_of(*options: str) -> Result:
    return CliRunner().invoke(main, ["leaderboard", "--board", "sharegpt", *options])


def test_a_third_partys_scheduler_is_in_the_table_and_on_the_page(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    result = leaderboard_of("--plugin", SJF, "--sched", "fcfs,sjf", "--output", str(file))
    assert result.exit_code == 0, result.output
    assert {"fcfs", "sjf"} <= set(result.output.split())
    text = file.read_text()
    assert f"--plugin {SJF}" in text
    assert [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| sjf")] == [["| sjf", "--plugin"]]
    assert "## ShareGPT-like conversations" in text
    assert "Azure 2023, code" not in text


def test_the_words_of_the_published_page_are_those_of_the_command() -> None:
    root = Path(SJF).parents[2]
    words = page([], [], [str(Path(SJF).relative_to(root))])
    intro, _, sources = words.partition("## Traces")
    published = (root / "docs/leaderboard.md").read_text()
    assert published.startswith(intro)
    assert published.endswith(sources)


def test_a_page_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    result = leaderboard_of("--output", str(tmp_path / "nowhere" / "page.md"))
    assert result.exit_code == 2
    assert "there is no such folder" in result.output


def test_a_missing_trace_is_one_line_and_nothing_runs() -> None:
    result = CliRunner().invoke(main, ["leaderboard"])
    assert result.exit_code == 2
    assert "the board azure-conv needs the trace azure2023_conv.csv" in result.output
