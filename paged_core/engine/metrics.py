"""EngineStats: the engine's inside at one moment, and what it did since it started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from paged_core.api.allocator import BlockStats


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """The pool over all steps, each step counting once. Shares lie in [0, 1].

    peak_blocks, mean_blocks     blocks in use, at most and on average
    saved_share                  blocks saved by sharing / blocks that it would take without sharing (paper, 6.3)
    peak_saved_blocks, peak_saved_share   the most blocks saved at once, and their share at that step
    waste_share                  slots of the sequences' tables that hold no token, each last block's end
    """

    peak_blocks: int = 0
    mean_blocks: float = 0.0
    saved_share: float = 0.0
    peak_saved_blocks: int = 0
    peak_saved_share: float = 0.0
    waste_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 95th percentile of seconds."""

    p50: float
    p95: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles | None:
        """The least value that half, and 95 percent, of `values` do not exceed; None of no values."""
        ranked = sorted(values)
        return cls(*(ranked[-(-len(ranked) * part // 100) - 1] for part in (50, 95))) if ranked else None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of groups per queue, the pool, and totals since the engine started."""

    num_running: int
    num_waiting: int  # those included whose grammar is being compiled
    num_preempted: int
    num_steps: int
    num_generated: int  # output tokens
    num_computed: int  # tokens put through the model, recomputed ones included
    blocks: BlockStats
    peak_blocks: int
    preemptions: Mapping[str, int]  # by mode
    finished: Mapping[str, int]  # by reason
    num_prompt: int = 0  # prompt tokens of requests that ended
    busy_s: float = 0.0  # time spent in steps
    pool: PoolHistory = PoolHistory()
    ttft: Quantiles | None = None  # time to first token of recent requests
    tpot: Quantiles | None = None  # time per output token after the first
    preempted_tokens: Mapping[str, int] = field(default_factory=dict)  # tokens whose KV left the device, by mode
    preemption_s: Mapping[str, float] = field(default_factory=dict)  # what preemptions were expected to cost, by mode
