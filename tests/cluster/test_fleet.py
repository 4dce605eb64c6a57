"""What Ray is told of the replicas, and what is found wrong before it is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paged_core.cluster.deploying import reason_in
from paged_core.cluster.fleet import Fleet
from paged_core.errors import ConfigError, ModelError, PagedError
from paged_core.server.settings import ServeSettings


@pytest.fixture(autouse=True)
def _settings_of_this_test_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def plan(model: str, flags: dict | None = None, **serve: object) -> Fleet:
    return Fleet.plan({"model": model, "device": "cpu", **(flags or {})}, ServeSettings.load(replicas=2, **serve))


def test_replicas_get_what_the_command_was_given_wherever_it_came_from(model, monkeypatch, tmp_path):
    monkeypatch.setenv("PAGED_BLOCK_SIZE", "32")
    (tmp_path / "paged.toml").write_text("max_num_seqs = 7\n[plugins.alloc_cow]\nwatermark = 0.2\n")
    fleet = plan(model, {"dtype": "float32"})
    given = {"block_size": 32, "max_num_seqs": 7, "dtype": "float32", "device": "cpu", "model": model}
    assert {name: fleet.engine[name] for name in given} == given
    assert fleet.engine["plugins"] == {"alloc_cow": {"watermark": 0.2}}
    assert fleet.max_num_seqs == 7


def test_a_path_is_sent_whole_and_the_name_stays_as_it_was_given(model, monkeypatch):
    monkeypatch.chdir(Path(model).parent)
    fleet = plan("tiny")
    assert (fleet.name, fleet.engine["model"]) == ("tiny", model)


def test_replicas_on_one_machine_share_cores_and_memory(model, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    fleet = plan(model, {"kv_memory_fraction": 0.6}, max_replicas=3)
    assert (fleet.least, fleet.most, fleet.cpus, fleet.gpus) == (2, 3, 4.0, 0.0)
    assert fleet.engine["threads"] == 4
    assert fleet.engine["kv_memory_fraction"] == pytest.approx(0.2)
    assert plan(model, {"threads": 3}).engine["threads"] == 3
    assert plan(model, max_replicas=50).cpus == 1.0


def test_replicas_in_a_cluster_take_what_they_are_given(model):
    fleet = plan(model, ray_address="auto", replica_cpus=6.0)
    assert (fleet.cpus, fleet.engine["threads"]) == (6.0, 6)
    assert "kv_memory_fraction" not in fleet.engine
    assert plan(model, ray_address="auto").cpus == 1.0
    on_gpu = plan(model, ray_address="auto", replica_gpus=0.5)
    assert on_gpu.gpus == 0.5
    assert "threads" not in on_gpu.engine


def test_what_is_wrong_is_found_without_ray(model, tmp_path):
    with pytest.raises(ConfigError, match="--max-replicas 1 is less than --replicas 2"):
        plan(model, max_replicas=1)
    with pytest.raises(PagedError, match="nosuch"):
        plan("nosuch")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    with pytest.raises((ModelError, ConfigError)):
        plan(str(broken))


@pytest.mark.usefixtures("ray")
def test_ray_is_told_how_many_how_large_and_which_router(model):
    fixed, scaled = (plan(model, {"max_num_seqs": 8}, drain=7.0, **more) for more in ({}, {"max_replicas": 5}))
    deployment = fixed.engines()._bound_deployment
    config = deployment._deployment_config
    assert (deployment.name, deployment.num_replicas) == ("engine", 2)
    assert deployment.max_ongoing_requests == 8 + 1024
    assert config.graceful_shutdown_timeout_s == 7.0
    assert config.request_router_config.get_request_router_class().__name__ == "ReplicaRouter"
    assert deployment.ray_actor_options["num_cpus"] == fixed.cpus
    scaling = scaled.engines()._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 5, 6.0)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            "The deployment failed to start.\nTraceback:\n  File x\npaged_core.errors.ConfigError: no room: do this\n",
            "no room: do this",
        ),
        (
            "ray::ServeReplica:a:engine.initialize() (pid=7)\n    raise RuntimeError(x)\nRuntimeError: no memory: none",
            "RuntimeError: no memory: none",
        ),
        ("Deployment 'engine' waits for 2 CPUs.", "Deployment 'engine' waits for 2 CPUs."),
        ("", "no reason is known"),
    ],
)
def test_a_report_is_told_by_the_line_that_says_why(told, reason):
    assert reason_in(told) == reason
