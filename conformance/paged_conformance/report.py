"""The report: outcomes gathered over a run (over all workers of pytest-xdist), as a table, as JSON and as a badge.

Exit codes: 0 conformant, 1 not conformant (or a stale known gap), 3 not run: the hardware is not here, or a test was
skipped. A run of only part of the suite keeps pytest's own exit code and gives no verdict but "not run". In a run of
everything that is registered, plugins made for another device are "not run" and do not change the exit code.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paged_conformance
from paged_conformance.judging import PROPERTY
from paged_conformance.known_gaps import stale_gaps
from paged_conformance.verdict import CONFORMANT, NOT_CONFORMANT, NOT_RUN, Judgement, Outcome, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from paged_conformance.judging import Collected
    from paged_conformance.selection import Selection

EXIT_NOT_RUN = 3
_COLOURS = {CONFORMANT: "brightgreen", NOT_CONFORMANT: "red", NOT_RUN: "lightgrey"}


class Report:
    """Gathers outcomes and judges at the end. Lives where reports arrive: not in xdist's workers."""

    def __init__(
        self, selection: Selection, gaps: dict[str, str], collected: Collected, samples: Sequence[str] = ()
    ) -> None:
        self._selection = selection
        self._samples = samples
        self._gaps = gaps
        self._collected = collected
        self._judgements = {(each.kind, each.name): Judgement(each) for each in selection.all()}
        self.stale: list[str] = []
        self.complete = False

    @property
    def judgements(self) -> list[Judgement]:
        """All candidates in order."""
        return list(self._judgements.values())

    def add(self, report: pytest.TestReport) -> None:
        """Take in one phase of one test. A test that judges nobody is left alone."""
        properties: dict[str, Any] = dict(report.user_properties)
        facts = properties.pop(PROPERTY, None)
        if facts is None or (report.when != "call" and report.passed):
            return
        outcome, message = _outcome(report)
        for kind, name in facts["judges"]:
            known = self._judgements[kind, name].outcomes
            if facts["id"] not in known or outcome == "failed":
                known[facts["id"]] = Outcome(facts["layer"], outcome, facts["refusal"], message, properties)

    def close(self) -> None:
        """Judge: no more outcomes will come."""
        collected = self._collected
        if not collected.by_id:
            self.stale = stale_gaps(self._gaps, collected.ids, collected.files, collected.every_file)
        ran = {name for judgement in self.judgements for name in judgement.outcomes}
        self.complete = collected.every_file <= collected.files and collected.ids <= ran
        for judgement in self.judgements:
            judgement.reasons += self._selection.reasons_not_run(judgement.candidate)
            judgement.partial = not self.complete
            judgement.expected = self._selection.expects(judgement.candidate)

    def _missing(self) -> str:
        files = sorted(self._collected.every_file - self._collected.files)
        ran = {name for judgement in self.judgements for name in judgement.outcomes}
        num_tests = len(self._collected.ids - ran)
        return ", ".join(files + ([f"{num_tests} of the collected tests"] if num_tests else []))

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, for a run in which pytest itself found nothing wrong.

        Candidates that nobody expected to run here count by their failures only.
        """
        if self.stale or worst(self.judgements) == NOT_CONFORMANT:
            return 1
        expected = [judgement for judgement in self.judgements if judgement.expected]
        missing = any(judgement.reasons or judgement.counts["skipped"] for judgement in expected)
        return EXIT_NOT_RUN if missing or (self.complete and worst(expected) == NOT_RUN) else 0

    @property
    def verdict(self) -> str:
        """Over all candidates, those included that nobody expected here; a stale known gap spoils it."""
        return NOT_CONFORMANT if self.stale else worst(self.judgements)

    def as_json(self) -> dict[str, Any]:
        """The report as published."""
        return {
            "suite": paged_conformance.__version__,
            "core": _version("paged-core"),
            "command": self.command(),
            "device": self._selection.device,
            "quick": self._selection.quick,
            "complete": self.complete,
            "environment": _environment(self._selection.device),
            "verdict": self.verdict,
            "stale_known_gaps": self.stale,
            "plugins": [judgement.as_json() for judgement in self.judgements],
        }

    def command(self) -> str:
        """The command that judges the same candidates again."""
        words = ["pytest", "--pyargs", "paged_conformance.suite"]
        words += [f"--paged-{each.candidate.kind}={each.candidate.name}" for each in self.judgements]
        words += [f"--paged-loader-sample={Path(path).name}" for path in self._samples]
        words.append(f"--paged-device={self._selection.device}")
        return " ".join([*words, "--paged-quick"] if self._selection.quick else words)

    def badge(self) -> dict[str, Any]:
        """For a shields.io endpoint."""
        wordings = {judgement.wording for judgement in self.judgements if judgement.verdict == self.verdict}
        message = wordings.pop() if len(wordings) == 1 else self.verdict
        return {
            "schemaVersion": 1,
            "label": f"paged-core {_version('paged-core')}",
            "message": message,
            "color": "yellow" if "known gap" in message else _COLOURS[self.verdict],
        }

    def write(self, folder: Path, report_file: str | None, badge_file: str | None) -> None:
        """Write the files that were asked for, relative to `folder`."""
        for name, body in ((report_file, self.as_json), (badge_file, self.badge)):
            if name is not None:
                (folder / name).write_text(json.dumps(body(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def table(self) -> list[str]:
        """The lines printed at the end of a run."""
        rows: list[tuple[str, ...]] = [
            ("plugin", "kind", "version", "api", "passed", "failed", "gaps", "skipped", "verdict")
        ]
        for judgement in self.judgements:
            record, counts = judgement.candidate.record, judgement.counts
            numbers = [str(counts[name]) for name in ("passed", "failed", "known gap", "skipped")]
            rows.append(
                (record.name, record.kind, record.version, str(record.provider.api), *numbers, judgement.wording)
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [
            f"{judgement.candidate.name}: {reason}" for judgement in self.judgements for reason in judgement.reasons
        ]
        lines += [
            f"{judgement.candidate.name} is made for {' and '.join(sorted(judgement.candidate.provider.devices))} and "
            "nobody named it: the exit code does not count that it was not run"
            for judgement in self.judgements
            if not judgement.expected
        ]
        if not self.complete:
            lines.append(f"only part of the suite ran, which gives no verdict; not run: {self._missing()}")
        return [*lines, *(f"known gap {name!r} matches no test: delete it" for name in self.stale)]


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        return "failed", text if report.when == "call" else f"in {report.when}: {text}"
    if report.skipped and hasattr(report, "wasxfail"):
        return "known gap", report.wasxfail
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return "skipped", reason.removeprefix("Skipped: ")
    return "passed", ""


def _version(dist: str) -> str | None:
    try:
        return version(dist)
    except PackageNotFoundError:
        return None


def _environment(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    facts |= {name: _version(name) for name in ("torch", "triton", "numpy", "pytest", "hypothesis")}
    if device == "cuda":
        import torch

        if torch.cuda.is_available():
            facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts
