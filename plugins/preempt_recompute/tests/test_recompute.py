"""preempt_recompute: the mode and its price."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from paged_preempt_recompute import RecomputeProvider

from paged_core.api.params import SamplingParams
from paged_core.api.preemption import Eviction, PreemptionNeed
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence


@pytest.fixture
def group():
    """A running group of two branches: 10 and 12 tokens computed, the first 8 of them shared."""
    rows = Rows(4, 32)
    request = Request("r", tuple(range(8)), SamplingParams(n=2, max_tokens=None), 0.0)
    branches = [Sequence(request, index) for index in range(2)]
    for row, (seq, length) in enumerate(zip(branches, (10, 12), strict=True)):
        seq.bind(rows, row)
        rows.num_tokens[row], rows.num_computed[row] = length + 1, length
    branches[1].parent, branches[1].divergence = branches[0], 8
    return Group(request, branches, GroupState.RUNNING, Residency.DEVICE)


def create(**need):
    return RecomputeProvider().create(PreemptionNeed(16, 1024, 100, **need), None, SimpleNamespace())


def test_it_recomputes_whatever_the_host_offers(group):
    for host_free in (0, 100):
        assert create().evict(group, 3, host_free).mode == "recompute"


def test_the_price_counts_a_shared_span_once(group):
    assert create(prefill_tokens_per_s=7.0).evict(group, 3, 0) == Eviction("recompute", (10 + 4) / 7.0)


def test_a_branch_whose_parent_ended_pays_for_all_of_its_own(group):
    group.sequences[0].finish_reason = "stop"
    assert create(prefill_tokens_per_s=1.0).evict(group, 3, 0).cost_s == 12.0


def test_it_cannot_be_asked_to_swap():
    need = PreemptionNeed(16, 1024, 0, required=frozenset({"swap"}))
    fit = RecomputeProvider().probe(need)
    assert not fit.ok
    assert "'swap'" in fit.reasons[0]
    assert RecomputeProvider().probe(PreemptionNeed(16, 1024, 0)).ok
