"""Attention against the dense oracle: every shape, dtype and limit the contract names."""

from __future__ import annotations

import math

import pytest
import torch

from paged_core.api.attention import AttentionLayer
from paged_core.errors import PluginContractError

DTYPES = ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 32, 64, 128, 256])
def test_ragged_lengths_around_block_edges_in_one_mixed_batch(world, check, dtype, block_size):
    edges = sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3})
    sequences = [(prefix, 1) for prefix in edges] + [(prefix, new) for prefix in edges for new in (2, 7)]
    check(world(sequences, block_size=block_size, dtype=dtype, kv_dtype=dtype))


@pytest.mark.parametrize("head_dim", [8, 16, 24, 32, 64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 2), (10, 2)])
def test_head_dims_and_groups(world, check, head_dim, heads):
    check(world([(37, 1), (0, 1), (5, 40), (0, 3)], head_dim=head_dim, heads=heads, block_size=16))


def test_more_query_heads_a_group_than_a_work_unit_has_rows(world, check):
    check(world([(9, 1), (3, 4), (700, 1)], heads=(80, 1), block_size=16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [255, 256, 257, 511, 512, 513, 2000])
def test_long_contexts_are_split_and_merged(world, check, dtype, length):
    check(world([(length - 1, 1), (3, 1)], heads=(9, 3), head_dim=64, block_size=16, dtype=dtype, kv_dtype=dtype))


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_cache_of_fewer_bits_than_the_activations(world, check, kv_dtype):
    check(world([(70, 1), (5, 9)], kv_dtype=kv_dtype))


@pytest.mark.parametrize("window", [1, 2, 5, 63, 64, 65, 300])
def test_sliding_window(world, check, window):
    layer = AttentionLayer(0, 0.3, window=window)
    check(world([(700, 1), (130, 70), (0, 1), (0, 5), (64, 3)], block_size=16), layer)


@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_softcap(world, check, softcap):
    check(world([(300, 1), (30, 70)], block_size=16), AttentionLayer(0, 2.0, softcap=softcap, window=90))


def test_extreme_logits_stay_finite(world, check):
    check(world([(300, 1), (30, 70)], block_size=16), AttentionLayer(0, 300.0))


def test_log_sum_exp(world):
    paged = world([(700, 1), (0, 1), (20, 30)], required=frozenset({"lse"}), block_size=16)
    _, lse = paged.run()
    torch.testing.assert_close(lse.double(), paged.expected()[1], atol=1e-5, rtol=1e-5)


def test_no_log_sum_exp_unless_required(world):
    assert world([(3, 1)]).run()[1] is None


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill_equals_whole_prefill(world, chunk):
    whole, _ = world([(0, 150)], block_size=4, heads=(6, 2)).run()
    paged = world([(0, 150)], block_size=4, heads=(6, 2))
    pieces = [paged.run([(0, first, min(chunk, 150 - first))])[0] for first in range(0, 150, chunk)]
    torch.testing.assert_close(torch.cat(pieces), whole, atol=1e-6, rtol=1e-6)


def test_nan_in_unused_slots_does_not_spread(world):
    """Museum 44: the world poisons every slot first, and the last block's tail stays poisoned."""
    paged = world([(5, 1), (0, 6), (64, 1)], block_size=16)
    assert paged.run()[0].isfinite().all()
    assert paged.cache.isnan().any()


def test_blocks_shared_by_two_sequences(world):
    paged = world([(8, 1), (8, 1)], block_size=4)
    paged.data[1] = paged.data[0]
    paged.tables[paged.rows[1], :2] = paged.tables[paged.rows[0], :2]
    out, _ = paged.run()
    assert torch.equal(out[0], out[1])
    torch.testing.assert_close(out.double(), paged.expected()[0], atol=1e-5, rtol=1e-5)


def test_inputs_strided_over_the_token_axis(world):
    """Museum 42: views of a fused qkv matrix, and an output inside a wider one."""
    paged = world([(20, 1), (3, 9)])
    q, k, v = paged.inputs(paged.spans)
    fused = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], 1)
    views = [part.view(len(q), -1, 16) for part in fused.split([64, 32, 32], 1)]
    wide = torch.full((len(q), 6, 16), float("nan"))
    plan = paged.backend.plan(paged.batch(paged.spans))
    paged.backend.forward(AttentionLayer(0, 0.25), *views, paged.cache, plan, wide[:, 1:5])
    torch.testing.assert_close(wide[:, 1:5].double(), paged.expected()[0], atol=1e-5, rtol=1e-5)
    assert wide[:, [0, 5]].isnan().all()
    assert torch.equal(fused, torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], 1))


def test_inputs_strided_inside_a_token_are_copied(world):
    paged = world([(20, 1), (3, 9)])
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in paged.inputs(paged.spans))
    out = torch.empty(q.shape)
    paged.backend.forward(
        AttentionLayer(0, 0.25), q, k, v, paged.cache, paged.backend.plan(paged.batch(paged.spans)), out
    )
    torch.testing.assert_close(out.double(), paged.expected()[0], atol=1e-5, rtol=1e-5)


def test_negative_slots_are_padding(world):
    paged = world([(4, 2)])
    batch = paged.batch(paged.spans)
    batch.num_tokens, batch.slots = 3, torch.tensor([*batch.slots, -1]).numpy()
    q, k, v = (torch.cat([x, torch.full_like(x[:1], float("nan"))]) for x in paged.inputs(paged.spans))
    out = torch.zeros(q.shape)
    before = paged.cache.isnan().sum()
    paged.backend.forward(AttentionLayer(0, 0.25), q, k, v, paged.cache, paged.backend.plan(batch), out)
    torch.testing.assert_close(out[:2].double(), paged.expected()[0], atol=1e-5, rtol=1e-5)
    assert (out[2] == 0).all()
    assert before - paged.cache.isnan().sum() == 2 * k[:2].numel()


def test_an_empty_batch_does_nothing(world):
    paged = world([(4, 2)])
    out, _ = paged.run([(0, 4, 2)])
    batch = paged.batch([])
    none = torch.empty(0, 4, 16), torch.empty(0, 2, 16), torch.empty(0, 2, 16)
    paged.backend.forward(AttentionLayer(0, 0.25), *none, paged.cache, paged.backend.plan(batch), torch.empty(0, 4, 16))
    assert torch.equal(paged.run([(0, 4, 2)])[0], out)


def test_two_plans_may_be_alive(world):
    paged = world([(300, 1), (10, 20)], block_size=16)
    first, second = ([span] for span in paged.spans)
    plans = [paged.backend.plan(paged.batch(span)) for span in (first, second)]
    for span, plan in zip((first, second), plans, strict=True):
        q, k, v = paged.inputs(span)
        out = torch.empty_like(q)
        paged.backend.forward(AttentionLayer(0, 0.25), q, k, v, paged.cache, plan, out)
        torch.testing.assert_close(out.double(), paged.expected(span)[0], atol=1e-5, rtol=1e-5)


def test_wrong_shapes_and_scales_are_refused(world):
    paged = world([(3, 2)])
    q, k, v = paged.inputs(paged.spans)
    plan = paged.backend.plan(paged.batch(paged.spans))
    with pytest.raises(PluginContractError, match="for k of shape"):
        paged.backend.forward(AttentionLayer(0, 0.25), q, q, v, paged.cache, plan, torch.empty_like(q))
    with pytest.raises(PluginContractError, match="bfloat16"):
        paged.backend.forward(AttentionLayer(0, 0.25), q.bfloat16(), k, v, paged.cache, plan, torch.empty_like(q))
    with pytest.raises(PluginContractError, match=r"k_scale 0\.5"):
        paged.backend.forward(AttentionLayer(0, 0.25, k_scale=0.5), q, k, v, paged.cache, plan, torch.empty_like(q))


def test_nan_of_one_sequence_stays_its_own(world):
    paged = world([(20, 1), (20, 1)])
    paged.data[0][1][20] = math.nan
    out, _ = paged.run()
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
