"""Tallies: how long requests and tokens took, as histograms for whoever watches over an engine; a few array operations
a step, however many sequences run."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from paged_core.api.output import RequestMetrics

_REASONS = ("error", "abort", "length", "repetition", "stop")
"""Why a request ended, if its branches did for several reasons: the first of these."""


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


# Upper bounds as vLLM has them, with finer ones below for models that are faster than its.
_FIRST = _bounds("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560")
_TOKEN = _bounds("0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
_REQUEST = _bounds("0.01 0.05 0.1 0.2 0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
_LENGTH = tuple(float(head * 10**exponent) for exponent in range(6) for head in (1, 2, 5))
_STEP = (1.0, *(float(2**exponent) for exponent in range(3, 15)))

BOUNDS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token": _FIRST,
    "inter_token_latency": _TOKEN,
    "time_per_output_token": _TOKEN,
    "e2e_latency": _REQUEST,
    "queue_time": _REQUEST,
    "prefill_time": _REQUEST,
    "decode_time": _REQUEST,
    "inference_time": _REQUEST,
    "prompt_tokens": _LENGTH,
    "generation_tokens": _LENGTH,
    "iteration_tokens": _STEP,
}
"""Histograms and the upper bounds of their buckets, in seconds or tokens."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment: `counts[i]` values are at most `bounds[i]` and above the bound before; the last count
    is of those above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class TallySheet:
    """What was counted so far. `finished`: requests by reason; `num_prompt`: prompt tokens of requests that have begun
    to answer."""

    distributions: Mapping[str, Distribution]
    finished: Mapping[str, int]
    num_prompt: int


class _Histogram:
    """Counts of values by bucket, and their sum."""

    __slots__ = ("_array", "bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._array = np.array(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float | None) -> None:
        """One value; None is none."""
        if value is not None:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def add_all(self, values: NDArray[np.float64]) -> None:
        """Many values."""
        for bucket in self._array.searchsorted(values).tolist():
            self.counts[bucket] += 1
        self.total += float(values.sum())


class Tallies:
    """Everything since the engine started; `num_rows` is the capacity of the engine's row table."""

    def __init__(self, num_rows: int) -> None:
        self._histograms = {name: _Histogram(bounds) for name, bounds in BOUNDS.items()}
        self._steps, self._gaps = self._histograms["iteration_tokens"], self._histograms["inter_token_latency"]
        self._finished = dict.fromkeys(_REASONS, 0)
        self._num_prompt = 0
        self._drawn = np.full(num_rows, np.nan)  # when each row drew last

    def started(self, row: int) -> None:
        """A sequence begins in `row`: its first token follows none."""
        self._drawn[row] = np.nan

    def step(self, num_tokens: int, rows: NDArray[np.int32], now: float) -> None:
        """A step computed `num_tokens`, and `rows` drew a token."""
        self._steps.add(num_tokens)
        gaps = now - self._drawn[rows]
        self._drawn[rows] = now
        self._gaps.add_all(gaps[~np.isnan(gaps)])  # the first token of a row follows none

    def first_token(self, metrics: RequestMetrics) -> None:
        """A request begins to answer."""
        self._num_prompt += metrics.num_prompt_tokens
        self._histograms["time_to_first_token"].add(metrics.time_to_first_token)
        self._histograms["queue_time"].add(metrics.time_in_queue)
        self._histograms["prefill_time"].add(metrics.prefill_time)

    def finished(self, metrics: RequestMetrics, reasons: Iterable[str | None]) -> None:
        """A request ended, its branches for `reasons`. It counts once, however many branches it has."""
        ended = set(reasons)
        self._finished[next((reason for reason in _REASONS if reason in ended), "error")] += 1
        self._histograms["e2e_latency"].add(metrics.e2e_latency)
        self._histograms["prompt_tokens"].add(metrics.num_prompt_tokens)
        self._histograms["generation_tokens"].add(metrics.num_generation_tokens)
        if metrics.first_token_time is not None:
            self._histograms["decode_time"].add(metrics.decode_time)
            self._histograms["inference_time"].add(metrics.inference_time)
            self._histograms["time_per_output_token"].add(metrics.mean_time_per_output_token)

    def sheet(self) -> TallySheet:
        """A copy of everything."""
        distributions = {
            name: Distribution(one.bounds, tuple(one.counts), one.total) for name, one in self._histograms.items()
        }
        return TallySheet(distributions, dict(self._finished), self._num_prompt)
