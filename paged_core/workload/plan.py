"""Plans: the requests of one rate, from length distributions and an arrival process or from a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import ConfigError
from paged_core.workload.arrivals import arrival_times
from paged_core.workload.lengths import Lengths, alpaca, arrivals_of, constant, read_lengths, sharegpt
from paged_core.workload.traces import at_rate, mean_rate, read_trace, scaled_lengths, shifted, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator
    from numpy.typing import NDArray

    from paged_core.workload.traces import Arrival

_SPARE = 4  # times as many drawn as a duration holds on average: bursty arrivals come in numbers
_NO_LIMIT = 1 << 40
_CHUNK = 256  # lengths are drawn by so many, whatever is needed, so that every rate has the same ones
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Workload:
    """What to offer.

    lengths         `sharegpt`, `alpaca`, `fixed`, or a CSV file of prompt_tokens and output_tokens
    fixed           (prompt, output) tokens of `fixed`
    trace           a file of arrivals; then lengths come from it, and a rate stretches its time axis
    slice_s         only a trace's requests from the first to the second of these, in its own seconds
    length_factor   all lengths of a trace times this
    burstiness      shape of gamma-distributed gaps
    num_requests    at most so many a rate
    duration_s      only those that are due in so many seconds
    most_tokens     prompt and output together; a trace's longer requests are left out, lengths that are drawn are
                    drawn again
    """

    lengths: str = "sharegpt"
    fixed: tuple[int, int] = (128, 128)
    trace: Path | None = None
    slice_s: tuple[float, float] | None = None
    length_factor: float = 1.0
    burstiness: float = 1.0
    num_requests: int = 100
    duration_s: float | None = None
    most_tokens: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of one rate, by time; how many of a trace were left out because they are too long."""

    rows: tuple[Arrival, ...]
    num_too_long: int
    source: str


def plan_of(workload: Workload, rate: float | None) -> Plan:
    """Requests at `rate` a second; None takes a trace's own pace. The same seed draws the same lengths at every rate.

    ConfigError when nothing is left to offer.
    """
    rows, source = _traced(workload) if workload.trace is not None else _drawn(workload, rate)
    most = workload.most_tokens or _NO_LIMIT
    kept: list[Arrival] = []
    too_long = [0]  # how many were left out before each of `kept`, and before the end
    for row in rows:
        if len(kept) == workload.num_requests:
            break
        if row.prompt_tokens + row.output_tokens > most:
            too_long[-1] += 1
        else:
            kept.append(row)
            too_long.append(too_long[-1])
    if workload.trace is not None and kept:
        kept = _paced(kept, rate, source)
    due = [row for row in kept if row.at_s <= (workload.duration_s or float("inf"))]
    if not due:
        why = f"none is due within {workload.duration_s:g} s" if kept else f"none of at most {most} tokens"
        raise ConfigError(f"no request to offer from {source}: {why}")
    # After the last one that fits nobody knows which were due in time; without a limit in time all were.
    end = len(due) if workload.duration_s is None or len(due) < len(kept) else len(due) - 1
    return Plan(tuple(due), too_long[end], source)


def _traced(workload: Workload) -> tuple[list[Arrival], str]:
    assert workload.trace is not None
    rows = read_trace(workload.trace)
    source = f"trace {workload.trace.name}"
    if workload.slice_s is not None:
        begin_s, end_s = workload.slice_s
        rows, source = window(rows, begin_s, end_s), f"{source} from {begin_s:g} to {end_s:g} s"
    if workload.length_factor != 1:
        rows, source = scaled_lengths(rows, workload.length_factor), f"{source}, lengths x {workload.length_factor:g}"
    return rows, source


def _paced(rows: list[Arrival], rate: float | None, source: str) -> list[Arrival]:
    """The requests that were taken, the first one at 0, at their mean rate: the whole trace may have another."""
    rows = shifted(rows)
    if rate is None:
        return rows
    if np.isinf(mean_rate(rows)) and np.isfinite(rate) and len(rows) > 1:
        raise ConfigError(f"{source}: its first {len(rows)} requests arrive at once, no --rate can stretch that")
    return at_rate(rows, rate)


def _drawn(workload: Workload, rate: float | None) -> tuple[list[Arrival], str]:
    if rate is None:
        raise ConfigError("a rate is needed without a trace")
    count = workload.num_requests
    if workload.duration_s is not None and np.isfinite(rate):
        count = min(count, round(_SPARE * (10 + rate * workload.duration_s)))
    lengths = _lengths(workload, count)
    times = arrival_times(count, rate, workload.burstiness, np.random.default_rng((workload.seed, 1)))
    prompt, output = lengths.means
    return arrivals_of(lengths, times), f"{lengths.name} lengths (mean {prompt:.0f} + {output:.0f} tokens)"


def _lengths(workload: Workload, count: int) -> Lengths:
    """`count` pairs that fit, or as many as come in a good many draws. Fewer are the first of more."""
    random = np.random.default_rng((workload.seed, 0))
    most = workload.most_tokens or _NO_LIMIT
    if workload.lengths == "fixed":
        if sum(workload.fixed) > most:
            raise ConfigError(f"no request to offer: {workload.fixed} tokens are more than {most} together")
        return constant(count, *workload.fixed)
    draw = _source(workload.lengths, most)
    chunks: list[Lengths] = []
    kept: list[NDArray[np.int64]] = []
    while sum(map(len, kept)) < count:
        chunks.append(draw(_CHUNK, random))
        kept.append(chunks[-1].pairs[chunks[-1].pairs.sum(axis=1) <= most])
        if len(chunks) >= _TRIES and not sum(map(len, kept)):
            raise ConfigError(f"no request to offer: {chunks[-1].name} lengths hold none of at most {most} tokens")
    return Lengths(chunks[0].name, np.concatenate(kept)[:count])


def _source(name: str, most: int) -> Callable[[int, Generator], Lengths]:
    if name in ("sharegpt", "alpaca"):
        return sharegpt if name == "sharegpt" else alpaca
    found = read_lengths(Path(name), Path(name).name, most)
    return lambda count, random: Lengths(found.name, found.pairs[random.integers(0, len(found.pairs), count)])
