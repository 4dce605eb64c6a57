"""`paged-core conformance` prints the pytest command, runs just that, and passes the verdict on as its exit code."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from paged_core.cli import main

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = ("--sched=fcfs", "--alloc=cow", "--alloc=alloc_cow", "--device=cpu", "--quick", "--report=out.json")
MORE = ("--badge=b.json", "--plugin=mine.py", "--known-gaps=p.toml", "--loader-sample=x.gguf")


class FakeRun:
    """Stands in for subprocess.run: keeps the command, answers with an exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.command: list[str] = []

    def __call__(self, command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        self.command = command
        return subprocess.CompletedProcess(command, self.code)


def test_command_is_printed_and_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(0)
    monkeypatch.setattr("paged_core.cli.conformance.subprocess.run", fake)
    result = CliRunner().invoke(main, ["conformance", *OPTIONS, *MORE])
    assert result.exit_code == 0, result.output
    assert shlex.split(result.stderr.splitlines()[-1]) == fake.command
    assert fake.command[:5] == [sys.executable, "-m", "pytest", "--pyargs", "paged_conformance.suite"]
    wanted = {
        "--paged-sched=fcfs",
        "--paged-alloc=cow",
        "--paged-alloc=alloc_cow",
        "--paged-device=cpu",
        "--paged-quick",
        "--paged-report=out.json",
        "--paged-badge=b.json",
        "--paged-plugin=mine.py",
        "--paged-known-gaps=p.toml",
        "--paged-loader-sample=x.gguf",
    }
    assert {word for word in fake.command if word.startswith("--paged")} == wanted


@pytest.mark.parametrize(("pytests", "ours"), [(0, 0), (1, 1), (2, 1), (3, 3), (4, 2), (5, 2)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, pytests: int, ours: int) -> None:
    monkeypatch.setattr("paged_core.cli.conformance.subprocess.run", FakeRun(pytests))
    assert CliRunner().invoke(main, ["conformance"]).exit_code == ours


def test_missing_extra_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.cli.conformance.find_spec", lambda name: None if name == "hypothesis" else object())
    result = CliRunner().invoke(main, ["conformance", "--sched=fcfs"])
    assert result.exit_code == 2
    assert 'needs hypothesis, not installed here: pip install "paged-core[conformance]"' in result.stderr


@pytest.mark.slow
def test_a_whole_kind_gets_its_verdict(tmp_path: Path) -> None:
    words = ["conformance", "--preempt=recompute", "--quick", "--report=r.json", "--badge=b.json"]
    command = [sys.executable, "-c", "from paged_core.cli import main; main()", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["complete"], report["quick"], report["verdict"]) == (True, True, "conformant")
    assert json.loads((tmp_path / "b.json").read_text())["message"] == "conformant"
    assert not (tmp_path / ".pytest_cache").exists()
