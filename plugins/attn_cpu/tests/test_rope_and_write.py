"""Fused rotation and KV write: the same bits as rotating in torch first."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from paged_attn_cpu.elements import row_offset

from paged_core.api.attention import AttentionLayer
from paged_core.errors import PluginContractError


def angles(positions: np.ndarray, rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 10000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    product = torch.from_numpy(positions).float()[:, None] * inverse
    return product.cos(), product.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As the decoder does: fp32, one rounding to the activation dtype."""
    half = cos.shape[1]
    first, second, rest = x.float().split([half, half, x.shape[2] - 2 * half], 2)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], 2).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rotary_dim", [16, 8, 4])
def test_fused_rope_equals_explicit_rotation_bit_for_bit(world, dtype, rotary_dim):
    shape = {"dtype": dtype, "kv_dtype": dtype, "block_size": 4}
    sequences = [(0, 9), (0, 1), (0, 40)]
    fused, plain = world(sequences, required=frozenset({"fused_rope"}), **shape), world(sequences, **shape)
    q, k, v = plain.inputs(plain.spans)
    batch = fused.batch(fused.spans)
    batch.rope = [angles(batch.positions + 99, 2), angles(batch.positions, rotary_dim)]
    given = [x.clone() for x in (q, k, v)]
    out, expected = torch.empty_like(q), torch.empty_like(q)
    fused.backend.forward(AttentionLayer(0, 0.25, rope=1), *given, fused.cache, fused.backend.plan(batch), out)
    rotated = rotate(q, *batch.rope[1]), rotate(k, *batch.rope[1])
    plan = plain.backend.plan(plain.batch(plain.spans))
    plain.backend.forward(AttentionLayer(0, 0.25, rope=1), *rotated, v, plain.cache, plan, expected)
    assert torch.equal(out, expected)
    assert torch.equal(fused.cache.nan_to_num(), plain.cache.nan_to_num())
    assert all(torch.equal(a, b) for a, b in zip(given, (q, k, v), strict=True))


def test_layer_without_rotary_positions_is_left_unrotated(world, check):
    check(world([(0, 9)], required=frozenset({"fused_rope"})))


def test_wrong_tables_are_refused(world):
    paged = world([(0, 3)], required=frozenset({"fused_rope"}))
    batch = paged.batch(paged.spans)
    q, k, v = paged.inputs(paged.spans)
    for table, message in (
        (torch.zeros(3, 9), "head_dim 16"),
        (torch.zeros(2, 8), "for 3 tokens"),
        (torch.zeros(3, 8, dtype=torch.float64), "float32"),
        (torch.zeros(8, 3).T, "contiguous"),
    ):
        batch.rope = [(table, table)]
        plan = paged.backend.plan(batch)
        with pytest.raises(PluginContractError, match=message):
            paged.backend.forward(AttentionLayer(0, 1.0, rope=0), q, k, v, paged.cache, plan, torch.empty_like(q))


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16"])
def test_every_written_value_rounds_like_torch(world, kv_dtype):
    """Subnormals, infinities, NaN, ties and overflow, in the float32 -> KV conversion."""
    paged = world([(0, 16)], head_dim=64, heads=(2, 2), kv_dtype=kv_dtype, block_size=16)
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65504.0, 65519.9, 65520.0, -7e4, 3.4e38, 6.1e-5]
    special += [2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 3 * 2.0**-25, 5.9e-8, 1e-40, 1.00390625, 1.01171875, 2049.0]
    bits = torch.randint(-(2**31), 2**31 - 1, (16 * 2 * 64,), generator=torch.Generator().manual_seed(0))
    values = bits.to(torch.int32).view(torch.float32).clone()
    values[: len(special)] = torch.tensor(special)
    values[200:900] = torch.randn(700, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 5, 700)
    k = values.view(16, 2, 64)
    q, _, _ = paged.inputs(paged.spans)
    plan = paged.backend.plan(paged.batch(paged.spans))
    paged.backend.forward(AttentionLayer(0, 1.0), q, k, k, paged.cache, plan, torch.empty_like(q))
    block = paged.tables[paged.rows[0], 0]
    expected = k.to(getattr(torch, kv_dtype)).transpose(0, 1)
    for part in (0, 1):
        torch.testing.assert_close(paged.cache[block, part], expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(paged.cache[block, part].signbit(), expected.signbit()) or expected.isnan().any()


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_every_stored_value_is_read_exactly(world, kv_dtype):
    """All 65 536 bit patterns but the NaNs, through a softmax over one key."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, kv_dtype))
    values = torch.where(patterns.isnan(), torch.zeros_like(patterns), patterns).view(256, 1, 256)
    paged = world([(0, 1)] * 256, head_dim=256, heads=(1, 1), kv_dtype=kv_dtype, block_size=1)
    q = torch.zeros(256, 1, 256)
    out = torch.empty(256, 1, 256)
    plan = paged.backend.plan(paged.batch(paged.spans))
    paged.backend.forward(AttentionLayer(0, 1.0), q, q, values.float(), paged.cache, plan, out)
    assert torch.equal(out, values.float())


@numba.njit
def offset_of(block, part, head, position, shape):
    return row_offset(block, part, head, position, shape)


@pytest.mark.parametrize("value", [0, 2**31 - 1])
def test_museum_42_offsets_are_64_bits_wide_before_the_first_product(value):
    """int32 arguments whose products need 60 bits."""
    block, head = np.int32(value), np.int32(7)
    shape = (np.int32(128), np.int32(256), np.int32(256))
    expected = (((int(block) * 2 + 1) * 128 + 7) * 256 + 255) * 256
    assert offset_of(block, np.int32(1), head, np.int32(255), shape) == expected
