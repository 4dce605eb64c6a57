"""What the engine reports about its pool and its requests, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paged_core.api.allocator import BlockStats
from paged_core.api.output import RequestMetrics
from paged_core.api.params import SamplingParams
from paged_core.engine.accounts import RECENT, Accounts
from paged_core.engine.metrics import PoolHistory, Quantiles

EMPTY = BlockStats(100, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def blocks(used, saved, waste=0):
    return replace(EMPTY, free=100 - used, saved=saved, tail_waste_slots=waste)


def request(ttft, tpot, tokens=3):
    return RequestMetrics(1.0, 1.0, 1.0 + ttft, 1.0 + ttft + 2 * tpot, longest_output=tokens, num_prompt_tokens=7)


def test_nothing_ran():
    accounts = Accounts()
    assert accounts.pool(4) == PoolHistory()
    assert accounts.ttft() is accounts.tpot() is None


def test_blocks_saved_are_weighed_by_the_blocks_it_would_take():
    accounts = Accounts()
    for used, saved, waste in ((10, 0, 8), (10, 30, 16), (20, 10, 0), (4, 30, 0)):
        accounts.step(5, blocks(used, saved, waste))
    pool = accounts.pool(4)
    assert pool.peak_blocks == 20
    assert pool.mean_blocks == 11
    assert pool.saved_share == pytest.approx(70 / 114)
    assert (pool.peak_saved_blocks, pool.peak_saved_share) == (30, pytest.approx(30 / 40)), "the first of equals"
    assert pool.waste_share == pytest.approx(24 / (114 * 4))
    assert accounts.num_computed == 20


def test_latencies_of_requests_that_have_none_are_left_out():
    accounts = Accounts()
    for metrics in (request(0.1, 0.01), request(0.3, 0.03), request(0.2, 0.02), request(0.4, 0.0, tokens=1)):
        accounts.finished(metrics)
    accounts.finished(RequestMetrics(1.0, num_prompt_tokens=7))
    assert accounts.num_prompt == 35
    assert (accounts.ttft().p50, accounts.ttft().p95) == (pytest.approx(0.2), pytest.approx(0.4))
    assert (accounts.tpot().p50, accounts.tpot().p95) == (pytest.approx(0.02), pytest.approx(0.03))


def test_only_recent_requests_are_remembered():
    accounts = Accounts()
    for i in range(RECENT + 10):
        accounts.finished(request(100.0 if i < 10 else 1.0, 0.01))
    assert accounts.ttft().p95 == 1.0
    assert len(accounts._ttft) == RECENT


def test_quantiles_are_the_least_values_that_enough_others_do_not_exceed():
    assert Quantiles.of(range(1, 101)) == Quantiles(50, 95)
    assert Quantiles.of([3, 1]) == Quantiles(1, 3)
    assert Quantiles.of([7]) == Quantiles(7, 7)


def test_branches_of_one_request_save_the_blocks_of_its_prompt(shadow, drain):
    """A prompt of 16 tokens in blocks of 4, four branches of 5 tokens: 5 blocks each, 4 of them shared."""
    engine = shadow()
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=5, ignore_eos=True)
    engine.add_request("a", list(range(1, 17)), params)
    shares = []
    for _ in range(6):
        engine.step()
        stats = engine.stats()
        shares.append((stats.blocks.used, stats.blocks.saved))
    drain(engine)
    assert shares[:3] == [(4, 12), (8, 12), (8, 12)]
    pool = engine.stats().pool
    assert pool.peak_saved_blocks == 12
    assert pool.peak_saved_share == pytest.approx(12 / 16)
    assert pool.saved_share == pytest.approx(12 * 5 / (4 + 8 * 4 + 12 * 5))
    assert engine.stats().num_prompt == 16
