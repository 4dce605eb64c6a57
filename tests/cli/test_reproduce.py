"""`paged-core reproduce`: what it prints, writes and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from paged_core.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def reproduce(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["reproduce", *arguments])


def test_a_part_is_judged_and_written_and_can_be_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    result = reproduce("--quick", "--only", "h1", "--jobs", "1", "--output", str(page))
    assert result.exit_code == 0, result.stderr
    assert "3 of 3 required" in result.stderr
    assert "KV memory that holds tokens, Orca (Max)" in result.stdout
    for name in ("page.json", "images/reproduction/fig02.png"):
        assert (tmp_path / name).stat().st_size > 1000
    first, pictures = page.read_text(), sorted((tmp_path / "images/reproduction").iterdir())
    assert "](page.json)" in first
    assert len(pictures) == 1
    again = tmp_path / "again.md"
    assert reproduce("--render", str(tmp_path / "page.json"), "--output", str(again)).exit_code == 0
    assert again.read_text() == first.replace("page.json", "again.json")


def test_a_part_is_written_only_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    result = reproduce("--quick", "--only", "H1", "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    assert list((tmp_path / "docs").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "H12"), "no claim is called H12; known are H1, H2"),
        (("--only", "H1", "--output", "nowhere/page.md"), "there is no folder"),
        (("--render", "nothing.json"), "nothing.json holds no results of `paged-core reproduce`"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = reproduce(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
