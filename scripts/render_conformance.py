"""Render docs/conformance.md from the reports in conformance/results/ (one file a plugin and device).

    python scripts/render_conformance.py            write the page
    python scripts/render_conformance.py --check    exit with 1 when the page is out of step

A report enters with the command that wrote it:

    paged-core conformance --attn=attn_cpu --report conformance/results/attn_cpu.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "conformance/results"
PAGE = ROOT / "docs/conformance.md"
KINDS = ("loader", "attn", "alloc", "sched", "preempt", "sampler", "executor")
LAYERS = ("contract", "behaviour", "laws", "engine", "cost")

INTRODUCTION = """# Conformance

Written by `scripts/render_conformance.py` from the reports in `conformance/results/`; do not edit. What the suite is,
how to run it and how to read a verdict: `conformance/README.md`. A third party's report enters by pull request: the
JSON file of a whole run (not `--quick`) of `paged-core conformance --report FILE`.

"Refusals" are the tests in whose place the refusal of an undeclared capability was tested.
"""


class ResultError(Exception):
    """A report that may not be published; the message names the file and why."""


def load_results(folder: Path) -> list[dict[str, Any]]:
    """One row a plugin: the report's facts with the plugin's own. Raises ResultError for a partial or quick report."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        for name, wrong in (("complete", not report["complete"]), ("quick", report["quick"])):
            if wrong:
                raise ResultError(f"{path.name}: {name} is {report[name]}; only a whole, full run is published")
        shared = {name: report[name] for name in ("core", "suite", "device", "environment")}
        rows += [shared | plugin for plugin in report["plugins"]]
    return sorted(rows, key=lambda row: (KINDS.index(row["kind"]), row["name"], row["device"]))


def render(rows: list[dict[str, Any]]) -> str:
    """The page."""
    parts = [INTRODUCTION, _summary(rows), "## By layer\n", _layers(rows), *_details(rows)]
    return "\n".join(parts)


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _summary(rows: list[dict[str, Any]]) -> str:
    head = ["plugin", "kind", "distribution", "device", "verdict", "passed", "refusals", "known gaps", "where"]
    body = []
    for row in rows:
        where = row["environment"]
        refusals = sum(1 for test in row["tests"].values() if test.get("refusal") and test["outcome"] == "passed")
        place = [where["system"], f"Python {where['python']}", f"torch {where['torch']}", where.get("gpu", "")]
        counts = [row["counts"].get("passed", 0), refusals, row["counts"].get("known gap", 0)]
        dist = f"{row['dist']} {row['version']}"
        verdict = f"**{row['verdict']}**"
        facts = [f"`{row['name']}`", row["kind"], dist, row["device"], verdict, *map(str, counts)]
        body.append([*facts, ", ".join(filter(None, place))])
    return _table(head, body)


def _layers(rows: list[dict[str, Any]]) -> str:
    body = []
    for row in rows:
        tests = list(row["tests"].values())
        cells = []
        for layer in LAYERS:
            outcomes = [test["outcome"] for test in tests if test["layer"] == layer]
            cells.append(f"{outcomes.count('passed')} of {len(outcomes)}" if outcomes else "-")
        body.append([f"`{row['name']}`", *cells])
    return _table(["plugin", *LAYERS], body)


def _details(rows: list[dict[str, Any]]) -> list[str]:
    parts = ["## What each declares, admits and was measured at\n"]
    for row in rows:
        declared = ", ".join(f"`{name}`" for name in row["capabilities"]) or "nothing"
        lines = [f"### {row['name']} ({row['device']})\n", f"Declares {declared}. Contract version {row['api']}.\n"]
        lines += [f"- not run: {reason}" for reason in row["reasons"]]
        lines += [f"- known gap `{name}`: {reason}" for name, reason in row["known_gaps"].items()]
        for name, test in row["tests"].items():
            lines += [f"- `{name}`: {key} = {value}" for key, value in test.get("measured", {}).items()]
        parts.append("\n".join(lines) + ("\n" if len(lines) > 2 else ""))
    return parts


def main() -> None:
    """Write or check the page."""
    try:
        page = render(load_results(RESULTS))
    except ResultError as error:
        sys.exit(str(error))
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page else f"{PAGE.name} is out of step")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
