"""`paged-core reproduce`: the PagedAttention paper's figures, found again on this engine in virtual time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command, Option
from paged_core.cli.report import note
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.bench.report import Table
    from paged_core.sim.reproduce.claims.claim import Claim
    from paged_core.sim.reproduce.found import Found

_HELP = """The PagedAttention paper's figures, found again: its systems as plugins of the real engine, on a virtual
clock, with published step times of OPT models in place of the model.

Writes a page with claims, the paper's values, ours, tolerances and verdicts, its pictures, and the results it is made
of: some six minutes on two cores. The exit code is 1 when a required figure is missed.
"""
_SECTION = "Reproduction"
_PAGE = "docs/reproduction.md"
_IMAGES = "images/reproduction"


def reproduce(parameters: Mapping[str, Any]) -> int:
    """Run what is asked for; returns the exit code."""
    from paged_core.sim.reproduce.claims.every import IDS, chosen
    from paged_core.sim.reproduce.document import counts
    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.reproduction import reproduce as run
    from paged_core.sim.reproduce.tasks import FULL, QUICK

    given = None if parameters["render"] is None else Found.read(Path(parameters["render"]))
    only = given.only if given is not None else parameters["only"] and parameters["only"].split(",")
    claims = chosen(only)
    size = given.size if given is not None else QUICK if parameters["quick"] else FULL
    page = _page(parameters["output"], whole=not size.quick and len(claims) == len(IDS))
    begin = time.monotonic()
    found = given or run(claims, size, parameters["jobs"] or os.cpu_count() or 1, _told(begin))
    _show(claims, found)
    if page is not None:
        _write(found, page)
    required, good, _, _ = counts(row for claim in claims for row in claim.rows(found))
    note(f"{good} of {required} required figures are reproduced; {time.monotonic() - begin:.0f} s")
    return 0 if good == required else 1


def _page(output: str | None, *, whole: bool) -> Path | None:
    """Where the page goes: nowhere unless it is named, when only a part is run. ConfigError: it cannot be written."""
    from paged_core.bench.plot import check_plot

    if output is None and not whole:
        return None
    page = Path(output or _PAGE)
    if not page.absolute().parent.is_dir():
        raise ConfigError(f"--output {page}: there is no folder {page.absolute().parent}; name one that exists")
    check_plot(page.with_suffix(".png"))  # asked before minutes of work, not after
    return page


def _told(begin: float) -> Any:
    def tell(done: int, of: int, what: str) -> None:
        note(f"{done:3d} of {of}, {time.monotonic() - begin:4.0f} s: {what}")

    return tell


def _show(claims: Sequence[Claim], found: Found) -> None:
    from rich.console import Console

    from paged_core.bench.report import Report

    console = Console()
    conditions = {"minutes": found.size.minutes, "traces": found.size.traces}
    report = Report("reproduce", conditions, [_table(claim, found) for claim in claims])
    report.show(console if console.is_terminal else Console(width=160))


def _table(claim: Claim, found: Found) -> Table:
    from paged_core.bench.report import Column, Table
    from paged_core.sim.reproduce.verdict import shown

    heads = ("figure", "paper", "ours", "held to", "verdict")
    table = Table(f"{claim.id}: {claim.title}", tuple(Column(head, head) for head in heads))
    for row in claim.rows(found):
        verdict = row.verdict if row.required else f"({row.verdict})"
        table.add(row.what, row.paper or None, shown(row.ours, row.unit), row.tolerance_text, verdict)
    table.notes.append(f"{claim.conditions}. In brackets: not required.")
    return table


def _write(found: Found, page: Path) -> None:
    """The results, the pictures and the page."""
    from paged_core.sim.reproduce.document import render
    from paged_core.sim.reproduce.plots import draw_all

    results = page.with_suffix(".json")
    found.write(results)
    draw_all(found, page.parent / _IMAGES)
    page.write_text(render(found, results.name, _IMAGES))
    note(f"written: {page}, {results.name} and {_IMAGES} beside it")


def _options() -> list[click.Option]:
    return [
        Option(
            ["--quick"],
            section=_SECTION,
            is_flag=True,
            help="Short traces, fewer variants, wider tolerances: under a minute. Writes nothing without --output.",
        ),
        Option(
            ["--only"],
            section=_SECTION,
            metavar="IDS",
            help="Claims to run, as H1,H4,control. Default: all. Writes nothing without --output.",
        ),
        Option(["--jobs"], section=_SECTION, type=click.IntRange(1), help="Processes. Default: one a processor core."),
        Option(
            ["--output"],
            section=_SECTION,
            metavar="FILE",
            help=f"The page; results (.json) and pictures ({_IMAGES}) go beside it. Default: {_PAGE}.",
        ),
        Option(
            ["--render"],
            section=_SECTION,
            metavar="RESULTS",
            help="Run nothing: make page and pictures of results that were written before.",
        ),
    ]


reproduce_command = Command("reproduce", reproduce, _options(), _HELP)
