"""Runs the conformance suite over deliberately broken plugins, in a process of its own, and reads the verdicts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

FOLDER = Path(__file__).parent
SEVERITY = ("passed", "skipped", "failed")


class Outcome(NamedTuple):
    """The worst of a test's parameter sets: passed, skipped or failed (errors of fixtures too), and its message."""

    status: str
    message: str = ""


def run_suite(
    kind: str, mutant_modules: Iterable[str], names: Iterable[str], tests: Iterable[str]
) -> dict[tuple[str, str], Outcome]:
    """Judge the plugins `names` by `tests`; the outcome by (name, test). A pair that was not judged is absent.

    `mutant_modules` are files of this folder without `.py`; a test is `file.py::test_name`, relative to the suite's
    folder, without parameters. Raises AssertionError with the output when the run did not come to its end.
    """
    import paged_conformance.suite

    suite = Path(next(iter(paged_conformance.suite.__path__)))
    chosen = list(names)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--import-mode=importlib", "-c", f"{folder}/pytest.ini", f"--rootdir={folder}"]
        command += [f"--junitxml={results}", "--paged-quick"]
        command += [f"--paged-plugin={FOLDER / module}.py" for module in mutant_modules]
        command += [f"--paged-{kind}={name}" for name in chosen]
        command += [str(suite / test) for test in sorted(set(tests))]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        report = f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        assert done.returncode in (0, 1), f"the suite did not run to its end (exit code {done.returncode}):\n{report}"
        return _outcomes(results, chosen)


def _outcomes(results: Path, names: list[str]) -> dict[tuple[str, str], Outcome]:
    """The worst outcome by (plugin, test) of a junit file; a plugin's name is among a test's parameters."""
    by_length = sorted(names, key=len, reverse=True)  # of two names that both occur the longer one is meant
    worst: dict[tuple[str, str], Outcome] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        function, _, parameters = case.attrib["name"].partition("[")
        name = next((n for n in by_length if re.search(rf"(?<![\w]){re.escape(n)}(?![\w])", parameters)), None)
        assert name is not None, f"{case.attrib['name']} judges none of {names}"
        pair = (name, f"{case.attrib['classname'].rsplit('.', 1)[-1]}.py::{function}")
        outcome = _outcome(case)
        if pair not in worst or SEVERITY.index(outcome.status) > SEVERITY.index(worst[pair].status):
            worst[pair] = outcome
    return worst


def _outcome(case: ElementTree.Element) -> Outcome:
    for tag, status in (("error", "failed"), ("failure", "failed"), ("skipped", "skipped")):
        child = case.find(tag)
        if child is not None:
            return Outcome(status, child.attrib.get("message", ""))
    return Outcome("passed")


def assert_all_die(kind: str, module: str, caught_by: dict[str, str], healthy: str) -> None:
    """Every mutant fails the test named beside it, and the `healthy` plugin passes all of those tests."""
    outcomes = run_suite(kind, [module], [*caught_by, healthy], caught_by.values())
    problems = [
        f"{name} survives {test}: {outcomes.get((name, test), 'was not judged by it')}"
        for name, test in caught_by.items()
        if outcomes.get((name, test), Outcome("absent")).status != "failed"
    ]
    problems += [
        f"{healthy} does not pass {test}: {outcomes.get((healthy, test), 'was not judged by it')}"
        for test in sorted(set(caught_by.values()))
        if outcomes.get((healthy, test), Outcome("absent")).status != "passed"
    ]
    assert not problems, "\n".join(problems)
