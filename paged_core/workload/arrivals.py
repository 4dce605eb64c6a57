"""Arrivals: times of requests that do not wait for each other's answers (an open loop)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

POISSON = 1.0
CONSTANT = float("inf")


def arrival_times(count: int, rate: float, burstiness: float, random: Generator) -> NDArray[np.float64]:
    """Seconds of `count` arrivals, float64 [count], ascending, the first one gap after 0; `rate` is requests a second.

    Gaps are gamma-distributed with shape `burstiness` and mean 1 / rate, as in vLLM's benchmark: `POISSON` (1) is a
    Poisson process, less than 1 is burstier, more is steadier, `CONSTANT` (infinity) spaces all alike. The coefficient
    of variation of the gaps is 1 / sqrt(burstiness). An infinite rate lets all arrive at 0.
    ConfigError for a rate or a burstiness that is not positive.
    """
    if not rate > 0 or not burstiness > 0:
        raise ConfigError(f"rate {rate} and burstiness {burstiness}: both must be above 0")
    if np.isinf(rate):
        return np.zeros(count)
    if np.isinf(burstiness):
        return np.arange(1, count + 1) / rate
    return np.cumsum(random.gamma(burstiness, 1 / (rate * burstiness), count))
