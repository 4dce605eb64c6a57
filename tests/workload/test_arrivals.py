"""Arrival processes: by seed, and by the moments of their gaps."""

from __future__ import annotations

import numpy as np
import pytest

from paged_core.errors import ConfigError
from paged_core.workload.arrivals import CONSTANT, POISSON, arrival_times

MANY = 20_000


def gaps(burstiness: float, rate: float = 4.0) -> np.ndarray:
    times = arrival_times(MANY, rate, burstiness, np.random.default_rng(7))
    return np.diff(times, prepend=0.0)


@pytest.mark.parametrize("burstiness", [0.25, POISSON, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_variation_of_the_burstiness(burstiness: float) -> None:
    found = gaps(burstiness)
    variation = 1 / np.sqrt(burstiness)
    error = variation / np.sqrt(MANY)  # of the mean, relative
    assert found.min() >= 0
    assert found.mean() == pytest.approx(1 / 4.0, rel=5 * error)
    assert found.std() / found.mean() == pytest.approx(variation, rel=0.05)


def test_poisson_gaps_are_exponential() -> None:
    found = gaps(POISSON)
    for quantile in (0.1, 0.5, 0.9):
        assert np.mean(found < -np.log(1 - quantile) / 4.0) == pytest.approx(quantile, abs=0.015)


def test_constant_gaps_are_all_alike() -> None:
    assert arrival_times(4, 2.0, CONSTANT, np.random.default_rng(0)).tolist() == [0.5, 1.0, 1.5, 2.0]


def test_all_arrive_at_once_at_an_infinite_rate() -> None:
    assert arrival_times(3, float("inf"), POISSON, np.random.default_rng(0)).tolist() == [0, 0, 0]


def test_a_seed_draws_the_same_times_again_and_another_seed_others() -> None:
    first, again, other = (arrival_times(50, 1.0, POISSON, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_rate_scales_the_same_draws() -> None:
    slow, fast = (arrival_times(50, rate, 0.5, np.random.default_rng(3)) for rate in (1.0, 4.0))
    assert fast == pytest.approx(slow / 4)


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0), (1, float("nan"))])
def test_what_is_not_positive_is_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        arrival_times(3, rate, burstiness, np.random.default_rng(0))
