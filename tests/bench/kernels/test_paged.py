"""The batches of the benchmark are right, and what is timed is attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paged_core.bench.kernels.cases import KV_DTYPES, Case, Heads
from paged_core.bench.kernels.paged import Backend, Layers, batch_of, declared

if TYPE_CHECKING:
    from paged_core.bench.site import Site
    from paged_core.plugins import Plugins

HEADS = Heads(4, 2, 16)


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


def test_what_is_timed_is_attention(plugins: Plugins, site: Site) -> None:
    layers = Layers(plugins, Case(HEADS, 1, 8, 8), Backend("torch", 8, "float32"), site)
    assert layers.count == len(layers.caches) == (1 << 14) // (8 * 2 * 2 * 16 * 4)
    q, k, v = layers.inputs
    wide_k, wide_v = (each.repeat_interleave(HEADS.query // HEADS.kv, 1).transpose(0, 1) for each in (k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), wide_k, wide_v, is_causal=True)
    torch.testing.assert_close(layers.run(), wanted.transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "uint8", "float8_e4m3fn"])
def test_a_decode_attends_to_sound_keys_and_values_whatever_their_form(
    plugins: Plugins, site: Site, monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    monkeypatch.setattr("paged_core.bench.kernels.paged._FILLED_AT_ONCE", 16)
    layers = Layers(plugins, Case(HEADS, 3, 20), Backend("torch", 8, kv_dtype), site)
    out = layers.run().float()
    assert out.isfinite().all()
    assert 0.05 < out.std() < 1  # means of 20 normal values, not garbage and not zeros
    first = layers.caches[0].float()
    assert all(torch.equal(first, cache.float()) for cache in layers.caches[1:])


def test_without_writing_the_cache_stays_as_it_was(plugins: Plugins, site: Site) -> None:
    layers = Layers(plugins, Case(HEADS, 3, 1), Backend("torch", 8, "float32"), site)
    before = layers.caches[0].clone()
    layers.without_writing()
    layers.run()
    assert torch.equal(layers.caches[0], before)
    written = Layers(plugins, Case(HEADS, 3, 1), Backend("torch", 8, "float32"), site)
    before = written.caches[0].clone()
    written.run()
    assert not torch.equal(written.caches[0], before)


def test_keys_are_rotated_where_that_is_required(plugins: Plugins, site: Site) -> None:
    """At angles of any size a rotation keeps lengths and changes elements."""
    layers = Layers(plugins, Case(HEADS, 3, 1), Backend("cpu", 16, "float32"), site, frozenset({"fused_rope"}))
    plain = Layers(plugins, Case(HEADS, 3, 1), Backend("cpu", 16, "float32"), site)
    layers.inputs = plain.inputs
    layers.caches[0].zero_(), plain.caches[0].zero_()
    layers.run(), plain.run()
    rotated, kept = layers.caches[0].float(), plain.caches[0].float()
    assert not torch.equal(rotated, kept)
    torch.testing.assert_close(rotated.square().sum(), kept.square().sum())


def test_a_write_rotates_over_what_it_touches_not_over_its_pool(plugins: Plugins, site: Site) -> None:
    case = Case(HEADS, 1, 1)
    layers = Layers(plugins, case, Backend("torch", 256, "float32"), site)
    assert layers.count == -(-site.rotation // case.moved_bytes("float32", "float32"))


def test_types_that_the_plugin_declares_are_measured_unless_others_are_asked_for(plugins: Plugins) -> None:
    name, kv_dtypes = declared(plugins, HEADS, Backend("auto", 8, "bfloat16"), "cpu")
    (capabilities,) = (one.provider.capabilities for one in plugins.of_kind("attn") if one.name == name)
    assert name.startswith("attn_")
    assert kv_dtypes == tuple(dtype for known, dtype in KV_DTYPES["cpu"].items() if known in capabilities)
    assert {"bfloat16", "float32"} <= set(kv_dtypes)


def test_tables_are_scattered_int32() -> None:
    tables = batch_of(Case(HEADS, 4, 64), 8).tables
    assert tables.dtype == np.int32
    assert tables.ravel().tolist() != sorted(tables.ravel().tolist())
