"""The fused kernels against the plain operators, their batch invariance, and a decoder with and without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from paged_core.model import store
from paged_core.model.fused import Fused, fused_for
from paged_core.native.team import Team

CPU = torch.device("cpu")
EPS = 1e-5
DTYPES = [torch.bfloat16, torch.float32]
SIZES = [(1, 576), (7, 100), (33, 64), (130, 1536), (3, 1)]


@pytest.fixture(params=DTYPES, ids=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def fused(request: pytest.FixtureRequest, dtype: torch.dtype) -> Fused:
    return Fused(dtype, Team(request.param))


def plain_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the order of a float32 sum: bfloat16 results may fall to the other side of a rounding, rarely."""
    assert got.dtype == want.dtype
    if want.dtype == torch.bfloat16:
        assert (got != want).float().mean() < 1e-3
        torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
    else:
        torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("rows, size", SIZES)
def test_residual_and_norm_are_those_of_the_plain_operators(fused: Fused, dtype: Any, rows: int, size: int) -> None:
    x, delta, weight = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype), torch.rand(size).to(dtype)
    added = x + delta
    assert_near(fused.norm(x, None, weight, EPS), plain_norm(x, weight))
    got = fused.norm(x, delta, weight, EPS)
    assert torch.equal(x, added), "the sum takes the place of x"
    assert_near(got, plain_norm(added, weight))


@pytest.mark.parametrize("rows, size", SIZES)
def test_gate_is_that_of_the_plain_operators(fused: Fused, dtype: Any, rows: int, size: int) -> None:
    gate_up = (torch.randn(rows, 2 * size) * 5).to(dtype)
    gate, up = gate_up.chunk(2, dim=-1)
    assert_near(fused.gate(gate_up), functional.silu(gate) * up)


def test_extremes_of_the_gate(fused: Fused, dtype: Any) -> None:
    values = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 80.0, -80.0, 1e4, -1e4, torch.inf, -torch.inf, torch.nan])
    gate_up = torch.stack((values, torch.ones(len(values)))).reshape(1, -1).to(dtype)
    got, want = fused.gate(gate_up)[0].float(), functional.silu(values.to(dtype)).float()
    assert torch.equal(got.isnan(), want.isnan())
    known = ~want.isnan()
    torch.testing.assert_close(got[known], want[known], atol=1e-30, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)


def test_a_row_has_the_same_bits_alone_and_among_others(fused: Fused, dtype: Any) -> None:
    x, weight = torch.randn(140, 1536).to(dtype), torch.rand(1536).to(dtype)
    gate_up = torch.randn(140, 2048).to(dtype)
    normed, gated = fused.norm(x, None, weight, EPS), fused.gate(gate_up)
    for row in range(0, 140, 7):
        assert torch.equal(fused.norm(x[row : row + 1], None, weight, EPS)[0], normed[row])
        assert torch.equal(fused.gate(gate_up[row : row + 1])[0], gated[row])


def test_a_spoiled_row_spoils_no_other(fused: Fused, dtype: Any) -> None:
    x, weight = torch.randn(5, 64).to(dtype), torch.rand(64).to(dtype)
    clean = fused.norm(x, None, weight, EPS)
    x[3, 7] = torch.nan
    spoiled = fused.norm(x, None, weight, EPS)
    assert spoiled[3].isnan().all()
    assert torch.equal(spoiled[[0, 1, 2, 4]], clean[[0, 1, 2, 4]])


def test_only_types_and_devices_with_kernels_are_fused() -> None:
    assert fused_for(CPU, torch.float16) is None
    assert fused_for(torch.device("meta"), torch.float32) is None
    assert isinstance(fused_for(CPU, torch.bfloat16), Fused)


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM", "OPTForCausalLM"])
def test_a_decoder_gives_the_same_with_and_without(
    reference: Any, paged: Any, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    model, config = reference(family)
    with_kernels = paged(model, config).step({0: [1, 2, 3], 1: [4]})
    monkeypatch.setattr(store, "fused_for", lambda device, dtype: None)
    without = paged(model, config).step({0: [1, 2, 3], 1: [4]})
    for row in (0, 1):
        torch.testing.assert_close(with_kernels[row], without[row], atol=1e-4, rtol=1e-4)
