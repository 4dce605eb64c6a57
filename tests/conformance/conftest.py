"""Running the suite as its users do: in a process of its own, somewhere else than the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

CONTRACT = ("--pyargs", "paged_conformance.suite.test_contract")


@dataclass(frozen=True)
class SuiteRun:
    """One run: exit code, what it printed, and its report (empty when none was written)."""

    code: int
    output: str
    report: dict[str, Any]

    def tests(self, name: str) -> dict[str, Any]:
        """Outcomes of one plugin's tests, by the test's bare name."""
        (plugin,) = [plugin for plugin in self.report["plugins"] if plugin["name"] == name]
        return {test.split("::")[-1].split("[")[0]: body for test, body in plugin["tests"].items()}


@pytest.fixture
def run_suite(tmp_path: Path) -> Callable[..., SuiteRun]:
    """Run pytest in an empty folder on the contract tests, or on `target` instead."""

    def run(*options: str, target: tuple[str, ...] = CONTRACT) -> SuiteRun:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *target, *options]
        words.append("--paged-report=report.json")
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        report = tmp_path / "report.json"
        body = json.loads(report.read_text()) if report.exists() else {}
        return SuiteRun(done.returncode, done.stdout + done.stderr, body)

    return run


@pytest.fixture
def contract_mutants() -> str:
    """The development plugin with one defect a provider."""
    return str(Path(__file__).with_name("contract_mutants.py"))
