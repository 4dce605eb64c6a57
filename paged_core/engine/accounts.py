"""Accounts: what the pool held over all steps, and how long requests took; a few sums a step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from paged_core.engine.metrics import PoolHistory, Quantiles

if TYPE_CHECKING:
    from paged_core.api.allocator import BlockStats
    from paged_core.api.output import RequestMetrics

RECENT = 4096
"""Requests whose latencies are kept, so that an engine that runs for months holds no more."""


class Accounts:
    """Totals since the engine started."""

    def __init__(self) -> None:
        self.num_computed = 0
        self.num_prompt = 0
        self.busy_s = 0.0
        self._num_steps = 0
        self._used = self._saved = self._waste = 0  # sums over steps
        self._peak_used = self._peak_saved = self._used_at_peak = 0
        self._ttft: deque[float] = deque(maxlen=RECENT)
        self._tpot: deque[float] = deque(maxlen=RECENT)

    def step(self, num_tokens: int, blocks: BlockStats) -> None:
        """A step computed `num_tokens`; `blocks` is the pool before anything that ended is freed."""
        used, saved = blocks.used, blocks.saved
        self.num_computed += num_tokens
        self._num_steps += 1
        self._used += used
        self._saved += saved
        self._waste += blocks.tail_waste_slots
        if used > self._peak_used:
            self._peak_used = used
        if saved > self._peak_saved:
            self._peak_saved, self._used_at_peak = saved, used

    def finished(self, metrics: RequestMetrics) -> None:
        """A request ended."""
        self.num_prompt += metrics.num_prompt_tokens
        ttft, tpot = metrics.time_to_first_token, metrics.mean_time_per_output_token
        if ttft is not None:
            self._ttft.append(ttft)
        if tpot is not None:
            self._tpot.append(tpot)

    def pool(self, block_size: int) -> PoolHistory:
        """What the pool held."""
        return PoolHistory(
            peak_blocks=self._peak_used,
            mean_blocks=_ratio(self._used, self._num_steps),
            saved_share=_ratio(self._saved, self._used + self._saved),
            peak_saved_blocks=self._peak_saved,
            peak_saved_share=_ratio(self._peak_saved, self._used_at_peak + self._peak_saved),
            waste_share=_ratio(self._waste, (self._used + self._saved) * block_size),
        )

    def ttft(self) -> Quantiles | None:
        """Seconds from arrival to the first token, of recent requests."""
        return Quantiles.of(self._ttft)

    def tpot(self) -> Quantiles | None:
        """Seconds a token after the first, of recent requests."""
        return Quantiles.of(self._tpot)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
