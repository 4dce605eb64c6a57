"""Tables of a comparison: latency, memory, and the rate that each system carries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paged_core.bench.report import Cell, Column, Table
from paged_core.sim.capacity import capacity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.bench.serve.figures import Quantiles
    from paged_core.sim.capacity import Criterion
    from paged_core.sim.sweep import Point

_WHO = (Column("system", "system"), Column("rate", "rate", ".4g"))
_SHOWN = ("p50", "p90", "p99")
_THROUGHPUT = (
    *_WHO,
    Column("num_requests", "requests", ","),
    Column("num_unfinished", "unfinished", ","),
    Column("num_rejected", "rejected", ","),
    Column("num_cut", "cut", ","),
    Column("requests_per_s", "requests/s", ".3f"),
    Column("output_per_s", "tokens/s", ",.1f"),
    Column("goodput_per_s", "goodput/s", ".3f"),
    Column("good_share", "in SLO", ".1%"),
)
_LATENCY = (
    *_WHO,
    Column("normalized_s", "s/token", ".4f"),
    Column("normalized_p90_s", "p90", ".4f"),
    *(Column(f"{what}_{q}_s", f"{what.upper()} {q}", ".3f") for what in ("ttft", "tpot") for q in _SHOWN),
    Column("itl_p99_s", "ITL p99", ".3f"),
    *(Column(f"e2e_{q}_s", f"E2E {q}", ".2f") for q in ("p50", "p99")),
)
_MEMORY = (
    *_WHO,
    Column("batch", "batch", ".2f"),
    Column("sequences", "branches", ".2f"),
    Column("waiting", "waiting", ".1f"),
    Column("busy", "busy", ".0%"),
    Column("token", "token", ".1%"),
    Column("reserved", "reserved", ".1%"),
    Column("internal", "internal", ".1%"),
    Column("rest", "free, external", ".1%"),
    Column("waste", "waste", ".1%"),
    Column("saved", "shared", ".1%"),
    Column("cached", "prefix hits", ".1%"),
    Column("preemptions", "preempted", ","),
)
_CAPACITY = (
    Column("system", "system"),
    Column("rate", "requests/s", ".3g"),
    Column("bound", "which is"),
    Column("ratio", "of the first", ".2f"),
)


def tables_of(points: Sequence[Point], criterion: Criterion) -> list[Table]:
    """Latency, throughput and memory of every system at every rate; where rates are several, what each carries."""
    found = [_latency(points), _throughput(points), _memory(points)]
    if len({point.rate for point in points}) > 1:
        found.append(_capacities(points, criterion))
    return found


def _latency(points: Sequence[Point]) -> Table:
    table = Table("Latency, in seconds", _LATENCY)
    for point in points:
        of = point.measures
        table.add(
            point.name,
            _finite(point.rate),
            *(quantile(of.normalized, which) for which in ("mean", "p90")),
            *(quantile(times, which) for times in (of.ttft, of.tpot) for which in _SHOWN),
            quantile(of.itl, "p99"),
            *(quantile(of.e2e, which) for which in ("p50", "p99")),
        )
    if any(not point.measures.all_finished for point in points):
        table.notes.append("Unfinished requests count with the time they have waited: a lower bound.")
    return table


def _throughput(points: Sequence[Point]) -> Table:
    table = Table("Throughput, a second", _THROUGHPUT)
    for point in points:
        of = point.measures
        counts = (of.num_requests, of.num_requests - of.num_finished, of.num_rejected, of.num_cut)
        good = (of.goodput_per_s, of.good_share)
        table.add(point.name, _finite(point.rate), *counts, of.requests_per_s, of.output_per_s, *good)
        why = ", ".join(f"{count:,} for {reason}" for reason, count in point.reasons.items())
        table.notes += [f"{point.name} at {point.rate:.4g}/s, rejected or cut: {why}."] if why else []
    return table


def _memory(points: Sequence[Point]) -> Table:
    table = Table("Means over time: requests that run, and where the pool's slots are", _MEMORY)
    for point in points:
        of, memory = point.measures, point.measures.memory
        split = (memory.token, memory.reserved, memory.internal, memory.rest)
        waste = None if math.isnan(memory.waste) else memory.waste
        counts = (of.batch, of.sequences, of.waiting, of.busy)
        table.add(point.name, _finite(point.rate), *counts, *split, waste, of.saved, of.cached, of.preemptions)
    table.notes.append("waste: of the slots in blocks that requests hold, those without a token.")
    return table


def _capacities(points: Sequence[Point], criterion: Criterion) -> Table:
    slo = any(point.measures.num_good is not None for point in points)
    also = f", {criterion.good:.0%} of the requests within the SLO" if slo else ""
    table = Table(
        f"Capacity: the rate up to which requests take {criterion.limit_s:g} s/token on average{also}", _CAPACITY
    )
    names = list(dict.fromkeys(point.name for point in points))
    found = []
    for name in names:
        mine = [(point.rate, criterion.latency(point.measures)) for point in points if point.name == name]
        found.append(capacity(mine, criterion.limit_s))
    for name, one in zip(names, found, strict=True):
        exact = not one.bound and not found[0].bound
        table.add(name, _finite(one.rate), one.bound or "it", one.rate / found[0].rate if exact else None)
    return table


def quantile(times: Quantiles | None, which: str) -> float | None:
    """A figure of a distribution by its name (mean, p50, ...); None without samples."""
    return None if times is None else float(getattr(times, which))


def _finite(rate: float) -> Cell:
    """JSON has no infinity."""
    return rate if math.isfinite(rate) else "inf"
