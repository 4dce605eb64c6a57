"""Measures: what one simulated run says, in the words of the paper and of a caller of a server.

Every figure is of one window of time, which begins when the system is no longer empty and ends with the last arrival:
after that nobody comes, and a system that drains looks better than it is.

normalized   mean over requests of (end - arrival) / output tokens, seconds a token: the paper's figure
TTFT, TPOT   first token - arrival; (end - first token) / (output tokens - 1)
ITL          from the end of one step that decodes to the end of the next, once for every token decoded in it; of a
             request that is preempted in between, the wait shows in E2E and TPOT
throughput   requests that end in the window over its length; tokens of the steps in it likewise
means        over the time of the window, a step's numbers holding while it runs and zero while nothing does
memory       shares of the pool's slots: holding a token / kept for one that will come / kept and never used / the rest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.bench.serve.figures import Quantiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.bench.serve.figures import Slo
    from paged_core.sim.outcome import Outcome, Requests, Steps

    Column = NDArray[Any]

WARMUP = 0.1
"""Share of the time between first and last arrival that is left out: the system fills up then."""
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is measured: requests that arrive in it, steps while they run in it. Both ends belong to it."""

    begin_s: float
    end_s: float

    @classmethod
    def of(cls, outcome: Outcome, warmup: float = WARMUP) -> Window:
        """From `warmup` of the time of arrivals to the last one; to the end of all work where all arrive at once.

        Nobody arrives after a run has ended: one that was ended before the last arrival is measured up to its end.
        """
        arrivals = outcome.requests.arrival_s
        if not len(arrivals):
            return cls(0.0, 0.0)
        first, last = float(arrivals.min()), min(float(arrivals.max()), outcome.end_s)
        if first >= last:
            return cls(min(first, outcome.end_s), outcome.end_s)
        return cls(first + warmup * (last - first), last)

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.end_s - self.begin_s

    def holds(self, times_s: Column) -> NDArray[np.bool_]:
        """Which times lie within; NaN never does."""
        return np.asarray((times_s >= self.begin_s) & (times_s <= self.end_s))

    def weights(self, steps: Steps) -> NDArray[np.float64]:
        """The share of the window that each step takes, float64 [steps]; they sum to how busy the device is."""
        begin = np.maximum(steps.begin_s, self.begin_s)
        end = np.minimum(steps.begin_s + steps.elapsed_s, self.end_s)
        return np.asarray(np.maximum(end - begin, 0.0) / self.length_s if self.length_s else np.zeros(len(begin)))


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the pool's slots are, in shares of all of them; means over the window.

    token      hold the keys and values of a token
    reserved   kept for a token that a running request will yet compute
    internal   kept for a request that will never use them: the end of its last block, or what a longer one would need
    used       are in blocks that some request holds: those above, and what an allocator lost by rounding up
    """

    token: float
    reserved: float
    internal: float
    used: float

    @property
    def rest(self) -> float:
        """Free, or lost by rounding: the paper's "external fragmentation and others"."""
        return 1 - self.token - self.reserved - self.internal

    @property
    def waste(self) -> float:
        """The share of what requests hold that holds no token. NaN while they hold nothing."""
        return 1 - self.token / self.used if self.used else float("nan")


@dataclass(frozen=True, slots=True)
class Measures:
    """One run in numbers; None where there is no sample. Rates are a second, times in seconds.

    num_requests, num_finished   that arrived in the window; those of them that were answered before the run ended
    num_rejected                 that could never run, being too long for the model or the pool: not among the others
    num_cut                      finished, but short of their length for the same reasons
    normalized, ttft, e2e        of all of them: an unfinished one counts with the time it has waited until the end
    tpot                         of the finished ones
    num_good                     finished in full within every limit of the SLO
    batch, sequences             running requests and their branches, means over time
    waiting, preempted           requests that wait for their first or for another turn, likewise
    busy                         share of the window in which a step ran
    saved                        blocks that sharing spares, over blocks without sharing
    cached                       tokens of prompts that the prefix cache had
    preemptions                  that the requests have suffered
    """

    window: Window
    num_requests: int
    num_finished: int
    num_rejected: int
    num_cut: int
    normalized: Quantiles | None
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None
    e2e: Quantiles | None
    requests_per_s: float
    output_per_s: float
    num_good: int | None
    batch: float
    sequences: float
    waiting: float
    preempted: float
    busy: float
    memory: Memory
    saved: float
    cached: float
    preemptions: int

    @property
    def latency(self) -> float:
        """Mean normalized latency, seconds a token. A lower bound unless all have finished. Infinite without any."""
        return float("inf") if self.normalized is None else self.normalized.mean

    @property
    def all_finished(self) -> bool:
        """Whether times are what they say, not bounds."""
        return self.num_finished == self.num_requests

    @property
    def good_share(self) -> float | None:
        """Requests within the SLO, of all that arrived. None without an SLO."""
        return None if self.num_good is None else _ratio(self.num_good, self.num_requests + self.num_rejected)

    @property
    def goodput_per_s(self) -> float | None:
        """Requests within the SLO that arrive in a second. None without an SLO."""
        return None if self.num_good is None else _ratio(self.num_good, self.window.length_s)


def measure(outcome: Outcome, slo: Slo | None = None, window: Window | None = None) -> Measures:
    """Everything of one run, within `window` (`Window.of` unless given)."""
    within = Window.of(outcome) if window is None else window
    requests, steps = outcome.requests, outcome.steps
    arrived = within.holds(requests.arrival_s)
    mine = arrived & ~requests.rejected
    times = _Times(requests, outcome.end_s, mine)
    weights = within.weights(steps)
    shared = _mean(steps.saved_blocks, weights) * outcome.system.block_size
    return Measures(
        window=within,
        num_requests=int(mine.sum()),
        num_finished=int(times.finished.sum()),
        num_rejected=int((arrived & requests.rejected).sum()),
        num_cut=int(requests.cut[mine].sum()),
        normalized=Quantiles.of(times.e2e_s / requests.output_tokens[mine]),
        ttft=Quantiles.of(times.ttft_s),
        tpot=Quantiles.of(times.tpot_s[times.finished & ~np.isnan(times.tpot_s)]),
        itl=_inter_token(steps, within.holds(steps.begin_s)),
        e2e=Quantiles.of(times.e2e_s),
        requests_per_s=_ratio(int(within.holds(requests.finish_s).sum()), within.length_s),
        output_per_s=_drawn_per_s(requests, within),
        num_good=None if slo is None else int(times.good(slo).sum()),
        batch=_mean(steps.num_groups, weights),
        sequences=_mean(steps.num_seqs, weights),
        waiting=_mean(steps.num_waiting, weights),
        preempted=_mean(steps.num_preempted, weights),
        busy=float(weights.sum()),
        memory=_memory(steps, weights),
        saved=_ratio(shared, _mean(steps.used_slots, weights) + shared),
        cached=_ratio(requests.cached_tokens[mine].sum(), requests.prompt_tokens[mine].sum()),
        preemptions=int(requests.num_preemptions[mine].sum()),
    )


class _Times:
    """Times of the requests chosen by `mine`, float64 [chosen], all as long as they were when the run ended."""

    def __init__(self, requests: Requests, end_s: float, mine: NDArray[np.bool_]) -> None:
        arrival, first, finish = (
            column[mine] for column in (requests.arrival_s, requests.first_token_s, requests.finish_s)
        )
        self.finished: NDArray[np.bool_] = ~np.isnan(finish)
        self._cut = requests.cut[mine]
        self.ttft_s: NDArray[np.float64] = np.where(np.isnan(first), end_s, first) - arrival
        self.e2e_s: NDArray[np.float64] = np.where(self.finished, finish, end_s) - arrival
        later = requests.output_tokens[mine] - 1
        self.tpot_s: NDArray[np.float64] = np.full(len(arrival), np.nan)
        np.divide(finish - first, later, out=self.tpot_s, where=later > 0)

    def good(self, slo: Slo) -> NDArray[np.bool_]:
        """Finished in full within every limit. One token has no TPOT to be too slow."""
        values = {"ttft": self.ttft_s, "tpot": np.nan_to_num(self.tpot_s), "e2e": self.e2e_s}
        kept = self.finished & ~self._cut
        for name, limit_ms in slo.limits_ms.items():
            kept = kept & (1000 * values[name] <= limit_ms)
        return kept


def _memory(steps: Steps, weights: NDArray[np.float64]) -> Memory:
    pool = float(steps.total_slots.max(initial=0))
    columns = (steps.token_slots, steps.reserved_slots, steps.internal_slots, steps.used_slots)
    return Memory(*(_ratio(_mean(column, weights), pool) for column in columns))


def _drawn_per_s(requests: Requests, window: Window) -> float:
    """Output tokens a second, each request's spread evenly between its first and its last one."""
    done = ~np.isnan(requests.finish_s)
    first, last, tokens = requests.first_token_s[done], requests.finish_s[done], requests.output_tokens[done]
    inside = np.minimum(last, window.end_s) - np.maximum(first, window.begin_s)
    length = last - first
    share = np.where(length > 0, np.clip(inside, 0, None) / np.where(length > 0, length, 1), window.holds(last))
    return _ratio(float((share * tokens).sum()), window.length_s)


def _inter_token(steps: Steps, began: NDArray[np.bool_]) -> Quantiles | None:
    """Quantiles of the gaps between tokens, from the steps that decode. None when none does."""
    end_s = steps.begin_s + steps.elapsed_s
    rests = np.cumsum(steps.begin_s > np.concatenate([steps.begin_s[:1], end_s[:-1]]) + 1e-9)
    decodes = np.flatnonzero(steps.decode_tokens > 0)
    gaps = steps.elapsed_s[decodes].astype(np.float64)
    # Behind a step without decodes (a prompt by itself) everybody has waited for it, unless nobody was there.
    follows = rests[decodes[1:]] == rests[decodes[:-1]]
    gaps[1:] = np.where(follows, np.diff(end_s[decodes]), gaps[1:])
    chosen = began[decodes]
    gaps, counts = gaps[chosen], steps.decode_tokens[decodes][chosen].astype(np.float64)
    if not len(gaps):
        return None
    order = np.argsort(gaps)
    ranks = np.cumsum(counts[order])
    places = [int(np.searchsorted(ranks, quantile * ranks[-1])) for quantile in _QUANTILES]
    return Quantiles(float(np.average(gaps, weights=counts)), *(float(gaps[order][place]) for place in places))


def _mean(column: Column, weights: NDArray[np.float64]) -> float:
    return float(np.dot(column.astype(np.float64), weights))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
