"""The reference of uint8 caches: codes as the contract writes them, and attention over what they are read as."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from paged_attn_torch import TorchAttentionProvider
from paged_attn_torch.codes import ROW_BYTES, decode, encode

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch
from paged_core.api.provider import PluginSettings

NEED = AttentionNeed("cpu", "float32", "uint8", num_heads=4, num_kv_heads=2, head_dim=16, block_size=4)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_codes_follow_the_contracts_formula() -> None:
    x = rows(5, 2, 16) * 3 + 7
    stored = encode(x).numpy()
    least, most = x.numpy().min(-1, keepdims=True), x.numpy().max(-1, keepdims=True)
    step = (most - least) / np.float32(255)
    assert stored.shape == (5, 2, 16 + ROW_BYTES)
    assert np.array_equal(stored[..., 16:].copy().view(np.float32), np.concatenate([step, least], -1))
    exact = (x.double().numpy() - least) / (most.astype(np.float64) - least) * 255
    assert np.abs(stored[..., :16] - exact).max() <= 0.5 + 1e-4
    assert stored[..., :16].min() == 0
    assert stored[..., :16].max() == 255


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_elements_are_read_back_within_half_a_step_of_their_row(dtype: torch.dtype, size: float) -> None:
    x = (rows(50, 64) * size).to(dtype)
    step = (x.float().amax(-1, keepdim=True) - x.float().amin(-1, keepdim=True)) / 255
    assert ((decode(encode(x)) - x.float()).abs() <= step * 0.5001).all()


@pytest.mark.parametrize("number", [0.0, -2.5, 1e-38, 3e38])
def test_a_row_of_one_number_is_exact(number: float) -> None:
    x = torch.full((2, 16), number)
    assert torch.equal(decode(encode(x)), x)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_something_infinite_is_nan_and_its_neighbours_are_not(number: float) -> None:
    x = rows(3, 16)
    x[1, 4] = number
    read = decode(encode(x))
    assert read[1].isnan().all()
    assert torch.equal(read[[0, 2]], decode(encode(x[[0, 2]])))


def attend(need: AttentionNeed, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A prefill of one sequence of len(k) tokens in blocks of descending number."""
    backend = TorchAttentionProvider().create(need, PluginSettings(), None)
    layout, num = backend.layout(6), len(k)
    cache = torch.full(layout.shape, 255).to(getattr(torch, layout.dtype))
    tables = np.array([[5, 4, 3, 2, 1, 0]], np.int32)
    positions = np.arange(num, dtype=np.int32)
    slots = tables[0, positions // 4].astype(np.int64) * 4 + positions % 4
    lengths = np.array([num], np.int32)
    batch = Batch(num, 1, np.array([0, num], np.int32), lengths, np.zeros(1, np.int32), tables, positions, slots)
    q = rows(num, need.num_heads, need.head_dim)
    out = torch.full_like(q, torch.nan)
    backend.forward(AttentionLayer(0, 0.25), q, k, v, cache, backend.plan(batch), out)
    return out


def test_attention_over_codes_is_attention_over_what_they_are_read_as() -> None:
    k, v = rows(2, 19, 2, 16) * 2
    exact = attend(replace(NEED, kv_dtype="float32"), decode(encode(k)), decode(encode(v)))
    assert torch.equal(attend(NEED, k, v), exact)


def test_a_row_is_eight_bytes_longer_than_its_codes() -> None:
    layout = TorchAttentionProvider().create(NEED, PluginSettings(), None).layout(10)
    assert (layout.shape, layout.dtype) == ((2, 10, 4, 2, 24), "uint8")
    assert layout.bytes_per_block == 2 * 4 * 2 * 24
