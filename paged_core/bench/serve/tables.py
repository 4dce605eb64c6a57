"""Tables of a sweep: rates, times, failures; and every request as a line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING

import numpy as np

from paged_core.bench.report import Cell, Column, Table
from paged_core.bench.serve.figures import FORMULAS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paged_core.bench.serve.figures import Summary
    from paged_core.bench.serve.record import Record

_RATES = (
    Column("rate", "rate", ".3g"),
    Column("num_ok", "answered", ","),
    Column("num_failed", "failed", ","),
    Column("duration_s", "s", ".2f"),
    Column("num_prompt", "tokens in", ","),
    Column("num_output", "out", ","),
    Column("requests_per_s", "requests/s", ".2f"),
    Column("output_per_s", "output tok/s", ",.1f"),
    Column("total_per_s", "all tok/s", ",.1f"),
    Column("goodput_per_s", "goodput/s", ".2f"),
    Column("good_share", "in SLO", ".1%"),
    Column("normalized_ms", "ms/token", ",.1f"),
    Column("peak_in_flight", "at once", ","),
    Column("late_p99_ms", "late p99 ms", ",.1f"),
    Column("client_share", "client", ".0%"),
)
_TIMES = (
    Column("rate", "rate", ".3g"),
    Column("what", "ms"),
    *(Column(name, name, ",.1f") for name in ("mean", "p50", "p90", "p95", "p99", "most")),
)
_FAILURES = (
    Column("rate", "rate", ".3g"),
    Column("kind", "failure"),
    Column("count", "times", ","),
    Column("example", "said"),
)


def tables_of(summaries: Sequence[Summary]) -> list[Table]:
    """What was got at each rate, the times with their formulas, and failures if there were any."""
    found = [_rates(summaries), _times(summaries)]
    if any(one.errors for one in summaries):
        found.append(_failures(summaries))
    return found


def write_requests(records: Sequence[Sequence[Record]], summaries: Sequence[Summary], path: Path) -> None:
    """A line of JSON a request: its rate and everything recorded, in seconds after the run began."""
    lines = [
        json.dumps({"rate": _rate(summary), **asdict(record)})
        for run, summary in zip(records, summaries, strict=True)
        for record in run
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def _rates(summaries: Sequence[Summary]) -> Table:
    table = Table("Load: requests a second offered, and what came back", _RATES)
    for one in summaries:
        normalized, late = one.times["normalized"], one.late
        table.add(
            _rate(one),
            one.num_ok,
            sum(one.errors.values()),
            one.duration_s,
            one.num_prompt,
            one.num_output,
            one.per_second(one.num_ok),
            one.per_second(one.num_output),
            one.per_second(one.num_prompt + one.num_output),
            None if one.num_good is None else one.per_second(one.num_good),
            None if one.num_good is None else one.num_good / max(1, one.num_ok + sum(one.errors.values())),
            None if normalized is None else 1000 * normalized.mean,
            one.peak_in_flight,
            None if late is None else 1000 * late.p99,
            one.per_second(one.client_cpu_s),
        )
        table.notes += [f"At rate {_shown(one)}: {warning}." for warning in one.warnings]
    table.notes += _counting(summaries)
    return table


def _counting(summaries: Sequence[Summary]) -> list[str]:
    asked, counted = (sum(one.prompt_counts[i] for one in summaries) for i in (0, 1))
    pieces, cpu = sum(one.num_pieces for one in summaries), sum(one.client_cpu_s for one in summaries)
    found = []
    if asked:
        found.append(f"Prompts: {asked:,} tokens asked for, {counted:,} by the server's count ({counted / asked:.1%}).")
    if by_pieces := sum(one.num_by_pieces for one in summaries):
        found.append(f"Output tokens of {by_pieces:,} answers are counted by pieces: the server told no usage.")
    if pieces:
        found.append(f"client: its processor time / duration; {1e6 * cpu / pieces:.0f} us a piece of text.")
    return found


def _times(summaries: Sequence[Summary]) -> Table:
    table = Table("Times as the caller sees them, in ms", _TIMES)
    for one in summaries:
        for what, quantiles in one.times.items():
            values: Sequence[Cell] = [None] * 6 if quantiles is None else [1000 * x for x in astuple(quantiles)]
            table.add(_rate(one), "normalized (a token)" if what == "normalized" else what, *values)
    table.notes += [f"{name} = {formula}." for name, formula in FORMULAS.items()]
    return table


def _failures(summaries: Sequence[Summary]) -> Table:
    table = Table("Failures by kind; they count in no time and no throughput", _FAILURES)
    for one in summaries:
        for kind, count in sorted(one.errors.items()):
            table.add(_rate(one), kind, count, " ".join(one.details[kind].split()))
    return table


def _rate(summary: Summary) -> Cell:
    """JSON has no infinity."""
    return summary.rate if np.isfinite(summary.rate) else "inf"


def _shown(summary: Summary) -> str:
    return _RATES[0].show(_rate(summary))
