"""The batches of the benchmark are right, and what is timed is attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_core.bench.attention import GOAL_CASE, KV_DTYPES, Case, Choice, Heads, Layers, batch_of, declared
from paged_core.bench.attention_table import attention_tables, goals_tables
from paged_core.bench.peaks import Peaks
from paged_core.errors import UnknownPluginError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

HEADS = Heads(4, 2, 16)
PEAKS = Peaks(read_bytes=1e9, fp32=1e9, bf16=1e9, int8=1e9)


def test_a_decode_is_one_token_at_the_end_of_every_sequence() -> None:
    batch = batch_of(Case(HEADS, 3, 18), 8)
    assert batch.query_start.tolist() == [0, 1, 2, 3]
    assert batch.seq_lens.tolist() == [18] * 3
    assert batch.positions.tolist() == [17] * 3
    assert sorted(batch.tables.ravel().tolist()) == list(range(9))
    assert batch.slots.tolist() == [int(blocks[2]) * 8 + 1 for blocks in batch.tables]


def test_a_prefill_writes_every_slot_of_its_blocks_in_order() -> None:
    batch = batch_of(Case(HEADS, 1, 16, 16), 8)
    assert (batch.num_tokens, batch.query_start.tolist()) == (16, [0, 16])
    assert batch.slots.tolist() == [int(block) * 8 + i for block in batch.tables[0] for i in range(8)]


def test_bytes_and_operations_of_a_case() -> None:
    assert Case(HEADS, 3, 10).kv_bytes("bfloat16") == 3 * 10 * 2 * 2 * 16 * 2
    assert Case(HEADS, 3, 10).ops == 3 * 10 * 4 * 4 * 16
    assert Case(HEADS, 1, 4, 4).ops == (1 + 2 + 3 + 4) * 4 * 4 * 16
    assert Case(HEADS, 1, 4, 2).ops == (3 + 4) * 4 * 4 * 16


def test_bytes_of_codes_include_step_and_minimum_of_each_row() -> None:
    assert Case(HEADS, 3, 10).kv_bytes("uint8") == 3 * 10 * 2 * 2 * (16 + 8)


def test_what_is_timed_is_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.bench.attention.ROTATION", 1 << 14)
    case = Case(HEADS, 1, 8, 8)
    layers = Layers(bootstrap(Settings.load()), case, "float32", Choice("torch", 8))
    assert layers.plugin == "attn_torch"
    assert len(layers.caches) == (1 << 14) // (8 * 2 * 2 * 16 * 4)
    q, k, v = layers.inputs
    wide_k, wide_v = (each.repeat_interleave(HEADS.query // HEADS.kv, 1).transpose(0, 1) for each in (k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), wide_k, wide_v, is_causal=True)
    torch.testing.assert_close(layers.run(), wanted.transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "uint8"])
def test_a_decode_attends_to_sound_keys_and_values_whatever_their_form(
    monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    monkeypatch.setattr("paged_core.bench.attention.ROTATION", 1 << 14)
    monkeypatch.setattr("paged_core.bench.attention._FILLED_AT_ONCE", 2)
    layers = Layers(bootstrap(Settings.load()), Case(HEADS, 3, 20), kv_dtype, Choice("torch", 8))
    out = layers.run().float()
    assert out.isfinite().all()
    assert 0.05 < out.std() < 1  # means of 20 normal values, not garbage and not zeros
    first = layers.caches[0].float()
    assert all(torch.equal(first, cache.float()) for cache in layers.caches[1:])


def test_decodes_and_prefills_have_a_table_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.bench.attention.ROTATION", 1 << 14)
    cases = [Case(HEADS, 2, 20), Case(HEADS, 1, 8, 8)]
    choice = Choice("torch", 8, ("float32",), rounds=1)
    decode, prefill = attention_tables(bootstrap(Settings.load()), cases, choice, PEAKS, lambda line: None)
    (row,) = decode.as_json()["rows"]
    assert (row["sequences"], row["context"], row["plugin"]) == (2, 20, "attn_torch")
    assert row["read_share"] == pytest.approx(cases[0].kv_bytes("float32") / 1e9 / (row["us"] / 1e6))
    assert row["share"] >= row["read_share"]
    assert len(prefill.rows) == 1


def test_types_that_the_plugin_declares_are_measured_unless_others_are_asked_for() -> None:
    plugins = bootstrap(Settings.load())
    found, kv_dtypes = declared(plugins, HEADS, Choice("auto", 8))
    (capabilities,) = (one.provider.capabilities for one in plugins.of_kind("attn") if one.name == found.plugin)
    assert found.plugin.startswith("attn_")
    assert kv_dtypes == tuple(dtype for name, dtype in KV_DTYPES.items() if name in capabilities)
    assert {"bfloat16", "float32"} <= set(kv_dtypes)
    asked = Choice("auto", 8, ("float16",))
    assert declared(plugins, HEADS, asked) == (asked, ("float16",))


def test_goals_stand_beside_share_of_bandwidth_and_gain_of_codes() -> None:
    read_s = GOAL_CASE.kv_bytes("bfloat16") / PEAKS.read_bytes
    (table,) = goals_tables({"bfloat16": read_s / 0.8, "uint8": read_s / 0.8 / 1.5, "float32": 1.0}, PEAKS)
    rows = table.as_json()["rows"]
    assert [row["value"] for row in rows] == pytest.approx([0.8, 1.5])
    assert [(row["goal"], row["verdict"]) for row in rows] == [(0.75, "met"), (1.6, "missed")]
    assert len(goals_tables({"bfloat16": read_s}, PEAKS)[0].rows) == 1
    assert goals_tables({"float32": 1.0}, PEAKS) == []


def test_a_plugin_that_does_not_exist_is_refused() -> None:
    choice = Choice("nonesuch", 8, ("float32",), rounds=1)
    with pytest.raises(UnknownPluginError, match="nonesuch"):
        attention_tables(bootstrap(Settings.load()), [Case(HEADS, 1, 8)], choice, PEAKS, lambda line: None)


def test_tables_are_scattered_int32() -> None:
    tables = batch_of(Case(HEADS, 4, 64), 8).tables
    assert tables.dtype == np.int32
    assert tables.ravel().tolist() != sorted(tables.ravel().tolist())
