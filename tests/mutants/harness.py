"""Runs the conformance suite over deliberately broken plugins, in a process of its own, and reads the verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parent
SEVERITY = ("passed", "known gap", "skipped", "failed")


class Outcome(NamedTuple):
    """The worst of a test's parameter sets: passed, skipped or failed, and its message."""

    status: str
    message: str = ""


def run_suite(
    kind: str, mutant_modules: Iterable[str], names: Iterable[str], tests: Iterable[str], keep: str = ""
) -> dict[tuple[str, str], Outcome]:
    """Judge the plugins `names` by `tests`; the outcome by (name, test). A pair that was not judged is absent.

    `mutant_modules` are files without `.py`, relative to this folder; a test is `file.py::test_name`, relative to the
    suite's folder, without parameters; `keep` narrows further, as pytest's option -k does. Raises AssertionError with
    the output when the run did not come to its end.
    """
    return _outcomes(run_report(kind, mutant_modules, names, tests, keep))


def run_report(
    kind: str, mutant_modules: Iterable[str], names: Iterable[str], tests: Iterable[str], keep: str = ""
) -> list[dict[str, Any]]:
    """The same; what the suite's report says of each plugin. A test may also be a whole file."""
    import paged_conformance.suite

    suite = Path(next(iter(paged_conformance.suite.__path__)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--import-mode=importlib", "-c", f"{folder}/pytest.ini", f"--rootdir={folder}"]
        command += [f"--paged-report={report}", "--paged-quick"]
        command += [f"--paged-plugin={FOLDER / module}.py" for module in mutant_modules]
        command += [f"--paged-{kind}={name}" for name in names]
        command += ["-k", keep] if keep else []
        command += [str(suite / test) for test in sorted(set(tests))]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        said = f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        assert report.exists(), f"the suite did not run to its end (exit code {done.returncode}):\n{said}"
        plugins: list[dict[str, Any]] = json.loads(report.read_text())["plugins"]
        return plugins


def _outcomes(plugins: list[dict[str, Any]]) -> dict[tuple[str, str], Outcome]:
    """The worst outcome by (plugin, test) over the tests' parameters."""
    worst: dict[tuple[str, str], Outcome] = {}
    for plugin in plugins:
        for test, facts in plugin["tests"].items():
            pair = (plugin["name"], test.partition("[")[0])
            outcome = Outcome(facts["outcome"], facts.get("message", ""))
            if pair not in worst or SEVERITY.index(outcome.status) > SEVERITY.index(worst[pair].status):
                worst[pair] = outcome
    return worst


def assert_all_die(kind: str, module: str, caught_by: dict[str, str], healthy: str) -> None:
    """Every mutant fails the test named beside it, and the `healthy` plugin passes all of those tests."""
    pairs = [f"({name} and {test.partition('::')[2]})" for name, test in caught_by.items()]
    keep = " or ".join([*pairs, healthy])  # a mutant need not meet the tests that are to catch others
    outcomes = run_suite(kind, [module], [*caught_by, healthy], caught_by.values(), keep)
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
