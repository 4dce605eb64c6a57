"""What exec_tp says of a need before anything starts."""

from __future__ import annotations

import pytest

from paged_core.testing.build import default_plugins, executor_need


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sizes_that_cut_the_heads_evenly_fit(size):
    """4 query heads on 2 KV heads: with 4 ranks each KV head is held twice."""
    assert default_plugins().records["exec_tp"].provider.probe(executor_need(world_size=size)).ok


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_other_sizes_are_refused_with_those_that_work(size):
    fit = default_plugins().records["exec_tp"].provider.probe(executor_need(world_size=size))
    assert not fit.ok
    assert "sizes that work: 1, 2, 4" in fit.reasons[0]


def test_auto_takes_it_for_several_ranks_and_leaves_one_to_the_engines_process():
    plugins = default_plugins()
    assert plugins.select("executor", "auto", executor_need(world_size=2)).name == "exec_tp"
    assert plugins.select("executor", "auto", executor_need(world_size=1)).name == "exec_local"


def test_more_ranks_than_gpus_are_refused():
    fit = default_plugins().records["exec_tp"].provider.probe(executor_need(device="cuda", world_size=4))
    assert not fit.ok
    assert any("4 ranks need a GPU each" in reason for reason in fit.reasons)
