"""Figures: what a caller saw of a server, by formulas that are printed with the numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from paged_core.bench.serve.record import Record

FORMULAS = {
    "TTFT": "first piece of text - sent",
    "E2E": "last piece of text - sent",
    "TPOT": "(E2E - TTFT) / (output tokens - 1), of answers of two tokens and more",
    "ITL": "gaps between neighbouring pieces of text of an answer, of all answers together",
    "normalized": "E2E / output tokens",
    "output tokens": "the server's usage, else the number of pieces",
    "percentiles": "linear between neighbours, of the requests that were answered to the end",
    "tokens/s, requests/s": "of the requests that were answered to the end / (last end - start of the run)",
    "goodput": "requests/s of those that keep every limit of the SLO",
    "late": "the client took up the request - it was due; not part of any time above",
}
LATE_S = 0.010
BUSY = 0.7


def ttft_s(record: Record) -> float:
    """Time to first token."""
    return record.text_s[0] - record.sent_s


def e2e_s(record: Record) -> float:
    """From being sent to the last piece of text."""
    return record.text_s[-1] - record.sent_s


def tpot_s(record: Record) -> float | None:
    """Time per output token after the first; None for an answer of one token."""
    return (e2e_s(record) - ttft_s(record)) / (record.num_output - 1) if record.num_output > 1 else None


def normalized_s(record: Record) -> float | None:
    """Seconds a token of the answer, the wait for the first one included."""
    return e2e_s(record) / record.num_output if record.num_output else None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of one quantity. NaN never: without a sample there are no quantiles."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, samples: Iterable[float | None]) -> Quantiles | None:
        """Linear between neighbours; None without a sample."""
        values = np.array([one for one in samples if one is not None], dtype=np.float64)
        if not len(values):
            return None
        return cls(float(values.mean()), *(float(one) for one in np.percentile(values, (50, 90, 95, 99, 100))))


_PER_REQUEST: dict[str, Callable[[Record], float | None]] = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
_ALIASES = {"e2el": "e2e"}


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in milliseconds by name: ttft, tpot, e2e."""

    limits_ms: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Slo:
        """`ttft:200,tpot:50`. ConfigError for anything else."""
        limits = {}
        for part in text.split(","):
            name, _, value = part.strip().partition(":")
            name = _ALIASES.get(name, name)
            try:
                limit = float(value)
            except ValueError:
                limit = 0.0
            if name not in _PER_REQUEST or name in limits or not 0 < limit < float("inf"):
                raise ConfigError(f"--slo {text}: NAME:MILLISECONDS, once each of {', '.join(_PER_REQUEST)}")
            limits[name] = limit
        return cls(limits)

    def kept(self, record: Record) -> bool:
        """Whether a request was answered to the end within every limit. One token has no TPOT to be too slow."""
        return record.ok and all(
            1000 * (_PER_REQUEST[name](record) or 0.0) <= limit for name, limit in self.limits_ms.items()
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """One rate's run. Times in seconds; `errors` counts failures by kind, `details` has one example of each."""

    rate: float
    num_ok: int
    duration_s: float
    errors: Mapping[str, int]
    details: Mapping[str, str]
    times: Mapping[str, Quantiles | None]
    late: Quantiles | None
    peak_in_flight: int
    num_prompt: int
    num_output: int
    prompt_counts: tuple[int, int]
    num_by_pieces: int
    num_good: int | None
    num_pieces: int
    client_cpu_s: float

    def per_second(self, amount: float) -> float:
        """`amount` over the run's duration."""
        return amount / self.duration_s if self.duration_s else 0.0

    @property
    def warnings(self) -> list[str]:
        """What makes the figures the client's rather than the server's."""
        found = []
        if self.late is not None and self.late.p99 > LATE_S:
            found.append(
                f"WARNING: arrivals slipped (p99 {1000 * self.late.p99:.1f} ms, most {1000 * self.late.most:.1f} ms "
                "after they were due): the client or its machine was too busy"
            )
        if self.per_second(self.client_cpu_s) > BUSY:
            found.append(
                f"WARNING: the client used {self.per_second(self.client_cpu_s):.0%} of a core: it may be "
                "what limits this load"
            )
        return found


def summarize(records: Sequence[Record], rate: float, slo: Slo | None = None, client_cpu_s: float = 0.0) -> Summary:
    """Everything of one run. Only requests that were answered to the end count in times and throughputs."""
    good = [record for record in records if record.ok]
    told = [record for record in good if record.num_prompt is not None]
    return Summary(
        rate=rate,
        num_ok=len(good),
        duration_s=max((record.ended_s for record in records), default=0.0),
        errors=Counter(record.error for record in records if not record.ok),
        details={record.error: record.detail for record in reversed(records) if not record.ok},
        times={
            "TTFT": Quantiles.of(map(ttft_s, good)),
            "TPOT": Quantiles.of(map(tpot_s, good)),
            "ITL": Quantiles.of(after - before for record in good for before, after in pairwise(record.text_s)),
            "E2E": Quantiles.of(map(e2e_s, good)),
            "normalized": Quantiles.of(map(normalized_s, good)),
        },
        late=Quantiles.of(record.woke_s - record.due_s for record in records),
        peak_in_flight=_peak(records),
        num_prompt=sum(
            record.asked.prompt_tokens if record.num_prompt is None else record.num_prompt for record in good
        ),
        num_output=sum(record.num_output for record in good),
        prompt_counts=(sum(one.asked.prompt_tokens for one in told), sum(one.num_prompt or 0 for one in told)),
        num_by_pieces=sum(record.usage_output is None for record in good),
        num_good=None if slo is None else sum(map(slo.kept, records)),
        num_pieces=sum(len(record.text_s) for record in records),
        client_cpu_s=client_cpu_s,
    )


def _peak(records: Sequence[Record]) -> int:
    """The most requests that were in flight at once; one that ends when another begins is gone by then."""
    edges = sorted([(record.sent_s, 1) for record in records] + [(record.ended_s, -1) for record in records])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most
