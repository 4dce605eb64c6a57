"""What exec_ray says of a need before anything starts."""

from __future__ import annotations

import paged_exec_ray.fitness
import pytest

from paged_core.testing.build import default_plugins, executor_need


def probe(**changes):
    return default_plugins().records["exec_ray"].provider.probe(executor_need(**changes))


def test_sizes_that_do_not_cut_the_heads_are_refused_with_those_that_do():
    fit = probe(world_size=3)
    assert not fit.ok
    assert "sizes that work: 1, 2, 4" in fit.reasons[0]


def test_a_machine_without_ray_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(paged_exec_ray.fitness, "find_spec", lambda name: None)
    fit = probe(world_size=2)
    assert fit.reasons == ("Ray is not installed",)
    assert 'pip install "paged-core[ray]"' in fit.hints[0]


def test_on_one_machine_auto_prefers_plain_processes():
    pytest.importorskip("ray")
    need = executor_need(world_size=2)
    assert probe(world_size=2).ok
    assert default_plugins().select("executor", "auto", need).name == "exec_tp"
