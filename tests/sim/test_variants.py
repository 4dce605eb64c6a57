"""Variants: names and settings of the systems of a comparison."""

from __future__ import annotations

import pytest

from paged_core.errors import ConfigError
from paged_core.sim.system import System
from paged_core.sim.variants import variants

BASE = System(plugins={"alloc_contiguous": {"reservation": "max", "other": 7}, "sched_fcfs": {"watermark": 0.02}})


def test_without_choices_there_is_the_system_itself() -> None:
    assert variants(BASE, {}) == {"auto": BASE}


def test_every_combination_is_named_by_what_varies() -> None:
    found = variants(BASE, {"sched": ["fcfs", "sched_prefill_first"], "block_size": [8, 16], "alloc": ["cow"]})
    assert list(found) == [
        "fcfs, blocks of 8",
        "fcfs, blocks of 16",
        "sched_prefill_first, blocks of 8",
        "sched_prefill_first, blocks of 16",
    ]
    one = found["fcfs, blocks of 8"]
    assert (one.sched, one.alloc, one.block_size, one.plugins) == ("fcfs", "cow", 8, BASE.plugins)


def test_devices_and_their_number_vary_too() -> None:
    found = variants(BASE, {"device": ["a100-80gb", "h200"], "num_devices": [2, 4]})
    assert list(found) == ["a100-80gb, TP 2", "a100-80gb, TP 4", "h200, TP 2", "h200, TP 4"]
    assert (found["h200, TP 2"].device, found["h200, TP 2"].num_devices) == ("h200", 2)


def test_a_plugin_is_compared_with_itself_by_its_settings() -> None:
    found = variants(BASE, {"alloc": ["contiguous:reservation=oracle", "alloc_contiguous:reservation=pow2", "cow"]})
    assert list(found) == ["contiguous oracle", "alloc_contiguous pow2", "cow"]
    tables = [system.plugins["alloc_contiguous"]["reservation"] for system in found.values()]
    assert tables == ["oracle", "pow2", "max"]
    assert all(system.plugins["alloc_contiguous"]["other"] == 7 for system in found.values())
    assert all(system.plugins["sched_fcfs"] == {"watermark": 0.02} for system in found.values())
    assert BASE.plugins["alloc_contiguous"] == {"reservation": "max", "other": 7}


@pytest.mark.parametrize("text", ["contiguous:", "contiguous:max", ":reservation=max", "contiguous:=max"])
def test_half_a_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME:KEY=VALUE"):
        variants(BASE, {"alloc": [text]})


def test_settings_need_a_plugin_that_is_there() -> None:
    with pytest.raises(ConfigError, match="not named or not installed"):
        variants(BASE, {"alloc": ["nobody:reservation=max"]})
    with pytest.raises(ConfigError, match="twice"):
        variants(BASE, {"alloc": ["cow", "cow"]})
