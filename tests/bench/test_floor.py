"""The floor of a step, by hand; and the schedule replayed at that price."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from paged_core.api.model import ModelSpec, MoeSpec, RopeSpec
from paged_core.bench.floor import Floor, floor_of, replay
from paged_core.bench.peaks import Peaks, measure_peaks
from paged_core.bench.speed import Workload, mixed, read_workload
from paged_core.bench.stub import stub_facts
from paged_core.errors import ConfigError
from paged_core.model.linear import PlainLinear

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FLOOR = Floor(
    weight_bytes=1000,
    token_ops=10,
    draw_ops=100,
    kv_bytes=4,
    attention_ops=8,
    read_bytes_per_s=1000.0,
    ops_per_s=1e6,
    attention_ops_per_s=1e6,
)


def test_one_request_pays_prefill_then_weights_and_context_a_token() -> None:
    ends = replay(stub_facts(100, 256, 8), FLOOR, Workload("x", [[1] * 20], [3]).arrivals())
    first = 1.0 + 20 * 4 / 1000  # weights take a second; reading 20 tokens' KV outweighs attending
    assert ends == pytest.approx([first, first + 1.0 + 21 * 4 / 1000, first + 2.0 + (21 + 22) * 4 / 1000])


def test_products_set_the_floor_where_they_outweigh_reading() -> None:
    slow = Floor(1000, 10, 100, 4, 8, read_bytes_per_s=1e9, ops_per_s=100.0, attention_ops_per_s=50.0)
    (end,) = replay(stub_facts(100, 256, 8), slow, Workload("x", [[1] * 20], [1]).arrivals())
    assert end == pytest.approx((20 * 10 + 100) / 100 + 8 * (20 * 21 / 2) / 50)


def spec(**changes: object) -> ModelSpec:
    sizes = {"vocab_size": 100, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4}
    rest = {"intermediate_size": 32, "max_position": 64, "ropes": (RopeSpec(1e4, 4),)}
    return ModelSpec(architecture="x", **(sizes | rest | changes))  # type: ignore[arg-type]


def test_a_dense_model_reads_its_layers_and_its_head() -> None:
    facts = dataclasses.replace(stub_facts(100, 64, 8), dtype="float32", kv_dtype="bfloat16")
    floor = floor_of(spec(), facts, Peaks(read_bytes=1.0, fp32=2.0, bf16=3.0, int8=None))
    linear = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32)
    norms = 2 * 2 * 16
    assert floor.weight_bytes == 4 * (linear + norms + 1600)
    assert floor.draw_ops == 2 * 1600
    assert floor.kv_bytes == 2 * 2 * 2 * 4 * 2  # keys and values, layers, heads, width, bytes
    assert floor.ops_per_s == 2.0


def test_int8_weights_are_a_byte_each_and_a_scale_a_row_and_attention_stays_what_it_was() -> None:
    facts = dataclasses.replace(stub_facts(100, 64, 8), dtype="bfloat16", kv_dtype="bfloat16", quantization="int8")
    floor = floor_of(spec(), facts, Peaks(read_bytes=1.0, fp32=2.0, bf16=3.0, int8=5.0))
    linear = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32)
    scales = 4 * (2 * (16 + 2 * 8 + 16 + 2 * 32 + 16) + 100)
    norms_bytes = 2 * 2 * 16 * 2
    assert floor.weight_bytes == linear + 1600 + scales + norms_bytes
    assert (floor.ops_per_s, floor.attention_ops_per_s) == (5.0, 3.0)


def test_without_an_int8_peak_there_is_no_int8_floor() -> None:
    facts = dataclasses.replace(stub_facts(100, 64, 8), dtype="bfloat16", kv_dtype="bfloat16", quantization="int8")
    with pytest.raises(ConfigError, match="int8 peak"):
        floor_of(spec(), facts, Peaks(read_bytes=1.0, fp32=2.0, bf16=3.0, int8=None))


def test_a_mixture_of_experts_has_no_floor_yet() -> None:
    with pytest.raises(ConfigError, match="mixture"):
        floor_of(spec(moe=MoeSpec(4, 2, 32)), stub_facts(100, 64, 8), Peaks(1.0, 1.0, 1.0, None))


def test_peaks_are_measured_and_shown() -> None:
    peaks = measure_peaks(num_bytes=1 << 20, order=64)
    assert min(peaks.read_bytes, peaks.fp32, peaks.bf16) > 0
    assert peaks.copy_bytes is not None
    assert peaks.out_bytes == peaks.in_bytes == peaks.copy_bytes / 2
    assert [row[0] for row in peaks.table().rows[:2]] == ["memory read, GB/s", "memory copy, read and written, GB/s"]
    assert set(peaks.products) == {"fp32", "bf16", "int8"}


def test_a_products_peak_is_that_of_the_fastest_path(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(PlainLinear):
        name = "slow"

        def __call__(self, x: Tensor) -> Tensor:
            for _ in range(20):
                super().__call__(x)
            return super().__call__(x)

    monkeypatch.setattr("paged_core.model.linear.choice.PATHS", (Slow, PlainLinear))
    assert measure_peaks(num_bytes=1 << 16, order=256, clock="cpu").products["fp32"] == "torch"


def test_a_mixed_workload_is_the_same_for_the_same_seed() -> None:
    one, other = mixed(50, 1000, 7), mixed(50, 1000, 7)
    assert one == other
    assert one != mixed(50, 1000, 8)
    assert all(4 <= len(prompt) <= 512 for prompt in one.prompts)
    assert all(4 <= output <= 512 for output in one.outputs)


def test_a_workload_is_read_or_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text('{"requests": [{"prompt": [5, 6], "out": 7}]}')
    assert read_workload(path) == Workload("w.json", [[5, 6]], [7])
    path.write_text('{"requests": [{"prompt": [5, 6]}]}')
    with pytest.raises(ConfigError, match=r"w\.json is no workload"):
        read_workload(path)
