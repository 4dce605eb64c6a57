"""exec_sim as a plugin: what it accepts, and what it says of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paged_exec_sim import SimExecutorProvider, SimSettings

from paged_core.costs.models import MODELS
from paged_core.errors import ConfigError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings


def capacity(need, **settings):
    return SimExecutorProvider().create(need, SimSettings(**settings), None).capacity()


def test_a_world_of_workers_is_refused(need) -> None:
    provider = SimExecutorProvider()
    assert provider.probe(need).ok
    fit = provider.probe(replace(need, world_size=2))
    assert not fit.ok
    assert "num_devices" in fit.reasons[0]


def test_auto_takes_an_executor_that_runs_the_model() -> None:
    plugins = bootstrap(Settings.load())
    priorities = {record.name: record.provider.priority for record in plugins.of_kind("executor")}
    assert priorities["exec_sim"] < priorities["exec_local"]


@pytest.mark.parametrize(
    ("model", "device", "num_devices", "num_blocks"),
    [("opt-13b", "a100-40gb", 1, 983), ("opt-66b", "a100-40gb", 4, 606), ("opt-175b", "a100-80gb", 8, 3754)],
)
def test_the_papers_servers_have_the_papers_slots(need, model, device, num_devices, num_blocks) -> None:
    need = replace(need, model=f"facebook/{model}", spec=MODELS[model])
    found = capacity(need, device=device, num_devices=num_devices)
    assert (found.num_blocks, found.num_host_blocks) == (num_blocks, num_blocks)


def test_elsewhere_the_pool_is_what_the_weights_leave(need) -> None:
    """80 GiB: 90 % less 1 GiB less 25.7 GB of weights, at 819,200 bytes a token."""
    found = capacity(need, device="a100-80gb")
    assert found.block_bytes == 16 * 819_200
    room = 0.9 * 80 * 2**30 - 2**30 - 25.7e9
    assert found.num_blocks * found.block_bytes == pytest.approx(room, rel=0.01)
    assert capacity(need, device="a100-80gb", num_devices=2).num_blocks > 2 * found.num_blocks


def test_weights_that_do_not_fit_are_refused_with_the_numbers(need) -> None:
    need = replace(need, model="opt-175b", spec=MODELS["opt-175b"])
    with pytest.raises(ConfigError, match=r"349 GB of weights.*more devices"):
        capacity(need, device="a100-80gb")


def test_unknown_names_are_told_with_those_there_are(need) -> None:
    with pytest.raises(ConfigError, match="a100-40gb"):
        capacity(need, device="a100-40")
    with pytest.raises(ConfigError, match="roofline"):
        capacity(need, cost="ruthline")
