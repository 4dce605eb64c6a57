"""Weights are counted by hand; a real process tells its peaks; the larger rest is what the goal is about."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.api.model import ModelSpec, RopeSpec
from paged_core.bench import resident
from paged_core.bench.resident import memory_table, reading, weights_bytes
from paged_core.bench.stub import stub_facts
from paged_core.errors import ConfigError, PagedError
from paged_core.testing.tiny import write_tiny_llama

if TYPE_CHECKING:
    from collections.abc import Mapping

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")


def spec(**changes: Any) -> ModelSpec:
    sizes = {"vocab_size": 100, "hidden_size": 16, "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4}
    rest = {"intermediate_size": 32, "max_position": 64, "ropes": (RopeSpec(1e4, 4),), "tie_embeddings": True}
    return ModelSpec(architecture="x", **{**sizes, **rest, **changes})


def test_parameters_are_counted_once_and_a_tied_head_only_where_it_is_narrower() -> None:
    facts = dataclasses.replace(stub_facts(100, 64, 8), dtype="bfloat16")
    linear, norms, table = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32, 3 * 16, 100 * 16
    assert weights_bytes(spec(), facts) == 2 * (linear + norms + table)
    assert weights_bytes(spec(tie_embeddings=False), facts) == 2 * (linear + norms + 2 * table)
    eight = dataclasses.replace(facts, quantization="int8")
    scales = 4 * (16 + 2 * 8 + 16 + 2 * 32 + 16 + 100)
    for tied in (True, False):
        assert weights_bytes(spec(tie_embeddings=tied), eight) == linear + table + scales + 2 * (norms + table)


def test_the_larger_rest_is_held_against_the_goal_and_the_first_reading_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mb = 1_000_000
    plain = {"weights": 100 * mb, "kv": 50 * mb, "ready": 0, "loading": 450 * mb, "working": 480 * mb}
    found = iter([dict.fromkeys(plain, 10**12), plain, plain, plain, plain, {**plain, "loading": 451 * mb}])
    monkeypatch.setattr(resident, "reading", lambda settings: next(found))
    ways: Mapping[str, Mapping[str, Any]] = {"a": {}, "b": {}}
    rows = memory_table(ways, 2, lambda line: None, str(tmp_path)).as_json()["rows"]
    assert [(row["loading_rest_mb"], row["working_rest_mb"]) for row in rows] == [(350, 330), (350.5, 330)]
    assert [row["verdict"] for row in rows] == ["met", "missed"]


def test_without_proc_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="/none/clear_refs, which this system does not have"):
        memory_table({"a": {}}, 1, lambda line: None, "/none/clear_refs")


@needs_proc
def test_a_real_process_fills_its_pool_and_tells_its_peaks(tmp_path: Path) -> None:
    model = str(write_tiny_llama(tmp_path / "model"))
    found = reading({"model": model, "attn": "attn_torch", "kv_memory": 16 << 20, "threads": 1})
    assert 15 << 20 < found["kv"] <= 16 << 20
    assert found["weights"] < 1 << 20 < found["ready"] <= found["loading"]
    assert found["working"] >= found["kv"] + found["weights"]


@needs_proc
def test_a_process_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(PagedError, match=r"failed with code 1: .*nonesuch"):
        reading({"model": str(tmp_path / "nonesuch")})
