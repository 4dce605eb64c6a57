"""docs/plugins.md, followed step by step: its code is run as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/plugins.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
ENTRY_POINT = re.compile(r'^(sched_\w+) = "(\w+)"$', re.MULTILINE)

pytestmark = pytest.mark.slow


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def judge(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """The page's conformance command on `source`."""
    (folder / "sched_shortest.py").write_text(source)
    words = ("conformance", "--plugin", "./sched_shortest.py", "--sched=shortest", "--quick")
    assert f"paged-core {' '.join(words)}" in PAGE.read_text()
    return run(folder, "-c", "from paged_core.cli import main; main()", *words)


def test_the_page_has_the_blocks_that_are_tested_here() -> None:
    assert len(BLOCKS) == 3


def test_the_first_version_fails_where_the_page_says(tmp_path: Path) -> None:
    result = judge(tmp_path, BLOCKS[0])
    assert result.returncode == 1, result.stdout + result.stderr
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert "test_nobody_starves_under_a_burst" in failed[0]
    assert "`test_nobody_starves_under_a_burst` fails" in PAGE.read_text()


def test_the_finished_scheduler_is_conformant_and_its_test_passes(tmp_path: Path) -> None:
    result = judge(tmp_path, BLOCKS[0] + "\n\n" + BLOCKS[1])
    assert result.returncode == 0, result.stdout + result.stderr
    (tmp_path / "test_own.py").write_text(BLOCKS[2])
    chosen = ("--paged-plugin=./sched_shortest.py", "--paged-sched=shortest")
    own = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py", *chosen)
    assert own.returncode == 0, own.stdout + own.stderr
    assert "1 passed" in own.stdout


def test_the_entry_point_of_the_page_is_the_one_that_is_written(tmp_path: Path) -> None:
    from paged_core.cli.new_plugin import write_plugin

    written = write_plugin("sched", "shortest", tmp_path) / "pyproject.toml"
    assert ENTRY_POINT.findall(PAGE.read_text()) == ENTRY_POINT.findall(written.read_text())
