from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_exec_local.local import LocalExecutor

from paged_core.api.batch import StepPlan
from paged_core.engine.assemble import assemble, load_settings
from paged_core.engine.hardware import kv_bytes
from paged_core.errors import ConfigError, EngineDeadError
from paged_core.model.device_runner import DeviceRunner
from paged_core.model.resident import Resident
from paged_core.testing.accelerator import FakeAccelerator
from paged_core.testing.build import default_plugins, executor_need
from paged_core.testing.tiny import write_tiny_llama


def test_a_world_of_two_is_refused_with_the_way_out():
    provider = default_plugins().select("executor", "local", executor_need()).provider
    fit = provider.probe(executor_need(world_size=2))
    assert not fit.ok
    assert "not on 2" in fit.reasons[0]
    assert "--executor=tp" in fit.hints[0]


def test_capacity_counts_whole_blocks_over_all_layers():
    executor = default_plugins().create("executor", "exec_local", executor_need())
    capacity = executor.capacity()
    assert capacity.block_bytes == 2 * 2 * 2 * 16 * 4 * 4  # layers, K and V, kv heads, head_dim, slots, bytes
    assert capacity.num_blocks == (1 << 20) // capacity.block_bytes
    assert capacity.num_host_blocks == (1 << 19) // capacity.block_bytes


def test_a_pool_of_codes_holds_more_blocks_and_counts_what_scales_them():
    blocks = {
        kv_dtype: default_plugins().create("executor", "exec_local", executor_need(kv_dtype=kv_dtype)).capacity()
        for kv_dtype in ("uint8", "bfloat16")
    }
    assert blocks["uint8"].block_bytes == 2 * 2 * 2 * (16 + 8) * 4  # step and minimum: 8 bytes a row
    assert blocks["uint8"].block_bytes == 4 * executor_need().spec.kv_bytes_per_token(*kv_bytes("uint8"))
    assert blocks["uint8"].num_blocks == (1 << 20) // blocks["uint8"].block_bytes > blocks["bfloat16"].num_blocks


def test_memory_below_one_block_is_a_clear_error():
    executor = default_plugins().create("executor", "exec_local", executor_need(kv_memory_bytes=100))
    with pytest.raises(ConfigError, match="100 bytes of KV memory do not hold one block"):
        executor.capacity()


def test_int8_weights_on_a_gpu_are_refused_with_every_reason():
    provider = default_plugins().select("executor", "local", executor_need()).provider
    fit = provider.probe(executor_need(device="cuda", quantization="int8"))
    assert not fit.ok
    assert "no linear layer for quantization int8 on cuda" in fit.reasons[0]


def started(model, accelerator, **changes):
    """An executor of `model` on an accelerator, with pools of 8 and 4 blocks."""
    changes = {"model": str(model), "attn_required": frozenset(), **changes}
    executor = LocalExecutor(executor_need(**changes), default_plugins(), accelerator)
    executor.start(8, 4, np.zeros((8, 16), dtype=np.int32))
    return executor


def test_an_accelerators_host_pool_is_pinned_until_the_end(tmp_path):
    device = FakeAccelerator(is_eager=True)
    executor = started(write_tiny_llama(tmp_path / "t"), device)
    here, host = executor._resident._runner._caches
    assert all(device.is_pinned(cache) for cache in host)
    assert not any(device.is_pinned(cache) for cache in here)
    assert executor.max_in_flight == 2
    executor.close()
    assert not any(device.is_pinned(cache) for cache in host)
    executor.close()


def test_a_host_pool_that_cannot_be_pinned_stays_as_it_is_and_says_why(tmp_path, caplog):
    device = FakeAccelerator(is_eager=True)
    device.pins_left = 1
    executor = started(write_tiny_llama(tmp_path / "t"), device)
    assert not any(device.is_pinned(cache) for cache in executor._resident._runner._caches[1])
    assert "the host's KV pool stays pageable, swaps will be slow: this device pins no more" in caplog.text
    executor.close()


def test_a_profile_of_an_accelerator_has_what_the_host_does(tmp_path):
    executor = started(write_tiny_llama(tmp_path / "t"), FakeAccelerator(is_eager=True), profile=True)
    empty = np.zeros(0, dtype=np.int32)
    plan = StepPlan(0, empty, empty, np.zeros(1, dtype=np.int32), *[empty] * 6)
    assert executor.collect(executor.submit(plan)).step == 0
    assert {span.name for span in executor.spans()} == {"move blocks"}


def test_a_step_under_way_when_the_executor_closes_is_lost_with_a_reason(tmp_path):
    executor = started(write_tiny_llama(tmp_path / "t"), FakeAccelerator(is_eager=True))
    empty = np.zeros(0, dtype=np.int32)
    ticket = executor.submit(StepPlan(0, empty, empty, np.zeros(1, dtype=np.int32), *[empty] * 6))
    executor.close()
    with pytest.raises(EngineDeadError, match="closed"):
        executor.collect(ticket)


def test_a_gpu_too_small_is_told_with_the_way_out(tmp_path, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Resident, "_cache", full)
    with pytest.raises(ConfigError, match=r"too little memory for the weights of .* and 8 KV blocks: lower"):
        started(write_tiny_llama(tmp_path / "t"), FakeAccelerator(is_eager=True))


@pytest.mark.parametrize("where", ["submit", "collect"])
def test_a_gpu_that_fails_is_the_engines_end(tmp_path, monkeypatch, where):
    def dead(*_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")

    executor = started(write_tiny_llama(tmp_path / "t"), FakeAccelerator(is_eager=True))
    monkeypatch.setattr(DeviceRunner, where, dead)
    empty = np.zeros(0, dtype=np.int32)
    plan = StepPlan(0, empty, empty, np.zeros(1, dtype=np.int32), *[empty] * 6)
    with pytest.raises(EngineDeadError, match=r"the GPU failed: CUDA error: an illegal memory access was encountered$"):
        executor.collect(executor.submit(plan))


def test_a_closed_executor_says_so(tmp_path):
    assembly = assemble(load_settings(model=str(write_tiny_llama(tmp_path / "t")), num_blocks=16))
    assert all(seconds >= 0 for seconds in assembly.timings.values())
    engine = assembly.engine
    engine.add_request("r", [1, 2])
    engine._executor.close()
    with pytest.raises(EngineDeadError, match="closed"):
        engine.step()
