"""Sixteen replicas in simulated time: the router against simpler ones, and a prefix that suddenly everybody wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core.cluster.hotspot import HotspotGuard
from paged_core.cluster.policy import LMetric
from tests.cluster import simulated as sim

if TYPE_CHECKING:
    import random


class NoGuard(HotspotGuard):
    def masks(self, group, num_replicas):
        return False


@pytest.mark.parametrize("rate", [30, 60])
def test_the_first_token_comes_sooner_than_by_turns_or_by_load_alone(rate):
    found = {}
    for name, route in {"turns": sim.round_robin, "load": sim.least_loaded, "lmetric": sim.lmetric}.items():
        calls = sim.arrivals(rate, 1000, lambda rng: rng.randrange(120))
        sim.simulate(calls, route())
        assert all(call.order.has_ended and call.ttft_s > 0 for call in calls)
        found[name] = sim.mean_ttft_ms(calls)
    assert found["lmetric"] < 0.5 * min(found["turns"], found["load"]), found  # 45 against 207 and 235 ms


def test_without_shared_prefixes_it_is_no_worse_than_by_load_alone():
    found = {}
    for name, route in {"load": sim.least_loaded, "lmetric": sim.lmetric}.items():
        numbers = iter(range(10**6))
        calls = sim.arrivals(25, 600, lambda rng, numbers=numbers: next(numbers))
        sim.simulate(calls, route())
        found[name] = sim.mean_ttft_ms(calls)
    assert found["lmetric"] < 1.02 * found["load"], found


def test_a_hot_prefix_crowds_its_holders_until_the_guard_spreads_it():
    """After 400 calls four fifths of all calls have one prefix, on top of which they have next to nothing to compute:
    without a guard its holders draw them all, however long their batches are."""
    found, holders = {}, {}
    for name, guard in {"bare": NoGuard(), "guarded": HotspotGuard()}.items():
        numbers = iter(range(10**6))

        def hot(rng: random.Random, numbers=numbers) -> int:
            return 0 if next(numbers) > 400 and rng.random() < 0.8 else rng.randrange(60)

        calls = sim.arrivals(60, 1600, hot, num_own=16, num_prefix=8000, num_output=200)
        sim.simulate(calls, sim.lmetric(LMetric(guard)))
        before, after = sim.mean_ttft_ms(calls[200:400]), sim.mean_ttft_ms(calls[-400:])
        found[name] = (before, after)
        holders[name] = len({call.order.replica for call in calls[400:] if call.prefix == 0})
    assert found["bare"][1] > 1.3 * found["bare"][0], found  # 55 -> 100 ms
    assert found["guarded"][1] < 0.7 * found["guarded"][0], found  # 57 -> 27 ms
    assert holders["bare"] < 8 < holders["guarded"], holders
