from __future__ import annotations

import dataclasses

import pytest

from paged_core.api.executor import ExecutorNeed
from paged_core.engine.assemble import assemble, load_settings
from paged_core.engine.hardware import kv_bytes
from paged_core.errors import ConfigError, EngineDeadError
from paged_core.model.spec import spec_from_hf
from paged_core.testing.build import default_plugins
from paged_core.testing.tiny import CONFIG, write_tiny_llama


def need(**changes):
    base = ExecutorNeed(
        model="unused",
        spec=spec_from_hf(dict(CONFIG)),
        loader="load_hf",
        attn="attn_torch",
        sampler="sample_torch",
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        block_size=4,
        max_rows=8,
        max_len=64,
        token_budget=64,
        kv_memory_bytes=1 << 20,
        host_memory_bytes=1 << 19,
    )
    return dataclasses.replace(base, **changes)


def test_a_world_of_two_is_refused_with_the_way_out():
    provider = default_plugins().select("executor", "local", need()).provider
    fit = provider.probe(need(world_size=2))
    assert not fit.ok
    assert "not on 2" in fit.reasons[0]
    assert "--executor=tp" in fit.hints[0]


def test_capacity_counts_whole_blocks_over_all_layers():
    executor = default_plugins().create("executor", "exec_local", need())
    capacity = executor.capacity()
    assert capacity.block_bytes == 2 * 2 * 2 * 16 * 4 * 4  # layers, K and V, kv heads, head_dim, slots, bytes
    assert capacity.num_blocks == (1 << 20) // capacity.block_bytes
    assert capacity.num_host_blocks == (1 << 19) // capacity.block_bytes


def test_a_pool_of_codes_holds_more_blocks_and_counts_what_scales_them():
    blocks = {
        kv_dtype: default_plugins().create("executor", "exec_local", need(kv_dtype=kv_dtype)).capacity()
        for kv_dtype in ("uint8", "bfloat16")
    }
    assert blocks["uint8"].block_bytes == 2 * 2 * 2 * (16 + 8) * 4  # step and minimum: 8 bytes a row
    assert blocks["uint8"].block_bytes == 4 * need().spec.kv_bytes_per_token(*kv_bytes("uint8"))
    assert blocks["uint8"].num_blocks == (1 << 20) // blocks["uint8"].block_bytes > blocks["bfloat16"].num_blocks


def test_memory_below_one_block_is_a_clear_error():
    executor = default_plugins().create("executor", "exec_local", need(kv_memory_bytes=100))
    with pytest.raises(ConfigError, match="100 bytes of KV memory do not hold one block"):
        executor.capacity()


def test_a_closed_executor_says_so(tmp_path):
    assembly = assemble(load_settings(model=str(write_tiny_llama(tmp_path / "t")), num_blocks=16))
    assert all(seconds >= 0 for seconds in assembly.timings.values())
    engine = assembly.engine
    engine.add_request("r", [1, 2])
    engine._executor.close()
    with pytest.raises(EngineDeadError, match="closed"):
        engine.step()
