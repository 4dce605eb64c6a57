"""preempt_swap: swap while there is room, else recompute, said once."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from paged_preempt_swap import SwapProvider

from paged_core.api.params import SamplingParams
from paged_core.api.preemption import Eviction, PreemptionNeed
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence


@pytest.fixture
def group():
    """A running group of one branch with 10 computed tokens."""
    rows = Rows(4, 32)
    request = Request("r", tuple(range(8)), SamplingParams(max_tokens=None), 0.0)
    seq = Sequence(request)
    seq.bind(rows, 0)
    rows.num_tokens[0], rows.num_computed[0] = 11, 10
    return Group(request, [seq], GroupState.RUNNING, Residency.DEVICE)


def create(host_blocks=8):
    need = PreemptionNeed(16, 1000, host_blocks, swap_bytes_per_s=500.0, prefill_tokens_per_s=2.0)
    return SwapProvider().create(need, None, SimpleNamespace())


def test_it_swaps_when_every_block_finds_room_and_pays_both_ways(group):
    assert create().evict(group, 3, 3) == Eviction("swap", 2 * 3 * 1000 / 500.0)


def test_museum_25_without_room_it_recomputes_and_says_so_once(group, caplog):
    swap = create()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert swap.evict(group, 3, 2) == Eviction("recompute", 10 / 2.0)
    assert len(caplog.records) == 1
    for part in ("r:", "3 blocks", "2 of 8 host blocks", "recomputed"):
        assert part in caplog.text


def test_room_that_comes_back_is_used_again(group):
    swap = create()
    assert [swap.evict(group, 3, free).mode for free in (2, 3, 0)] == ["recompute", "swap", "recompute"]


def test_a_group_without_blocks_has_nothing_to_move(group, caplog):
    assert create().evict(group, 0, 8).mode == "recompute"
    assert not caplog.records


@pytest.mark.parametrize("host_blocks", [0, 8])
def test_a_host_pool_of_none_or_unknown_size_fits_since_recompute_stands_in(host_blocks):
    assert SwapProvider().probe(PreemptionNeed(16, 0, host_blocks)).ok


def test_auto_prefers_recompute():
    from paged_preempt_recompute import RecomputeProvider

    assert SwapProvider.priority < RecomputeProvider.priority
