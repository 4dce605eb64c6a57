"""Packed products against the plain one, and the store that fuses weights on their way in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from paged_core.model import linear
from paged_core.model.linear import Linear, packs
from paged_core.model.spec import spec_from_hf
from paged_core.model.store import WeightStore

CPU = torch.device("cpu")


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-2)])
def test_products_equal_the_plain_one(dtype: torch.dtype, tolerance: float, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for out, inner in ((1, 1), (7, 5), (96, 64), (301, 40)):
        weight = (torch.randn(out, inner, generator=generator) * inner**-0.5).to(dtype)
        bias = torch.randn(out, generator=generator).to(dtype) if has_bias else None
        layer = Linear(weight, bias)
        for rows in (1, 2, 7, 33, 70):
            x = torch.randn(rows, inner, generator=generator).to(dtype)
            plain = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
            torch.testing.assert_close(layer(x).double(), plain, atol=tolerance, rtol=tolerance)
            assert layer(x).dtype == dtype


def test_only_what_onednn_computes_natively_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not packs(torch.ones(2, 2, dtype=torch.float16))
    assert not packs(torch.ones(2, 2, device="meta"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not packs(torch.ones(2, 2))


def test_the_decoder_is_the_same_without_packing(reference: Any, paged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = reference("Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)
    packed = paged(model, config).step({0: [1, 2, 3]})[0]
    monkeypatch.setattr(linear, "packs", lambda weight: False)
    torch.testing.assert_close(paged(model, config).step({0: [1, 2, 3]})[0], packed, atol=1e-5, rtol=0)


def test_tensors_of_the_right_kind_are_kept_without_a_copy(reference: Any) -> None:
    store = WeightStore(spec_from_hf(reference("LlamaForCausalLM")[1]), torch.float32, CPU)
    tensor = torch.ones(320, 64)
    store.put("embed.weight", tensor)
    assert store.take("embed.weight").data_ptr() == tensor.data_ptr()
    assert store.take_if_any("embed.weight") is None, "what was taken is gone"


def test_parts_are_fused_in_any_order(reference: Any) -> None:
    store = WeightStore(spec_from_hf(reference("LlamaForCausalLM")[1]), torch.bfloat16, CPU)
    for value, part, rows in ((2.0, "v", 32), (0.0, "q", 64), (1.0, "k", 32)):
        store.put(f"layers.0.attn.{part}.weight", torch.full((rows, 64), value))
    fused = store.take("layers.0.attn.qkv.weight")
    assert fused.dtype == torch.bfloat16
    assert fused[:, 0].tolist() == [0.0] * 64 + [1.0] * 32 + [2.0] * 32


def test_gemma_norms_stay_in_float32(reference: Any) -> None:
    spec = spec_from_hf(reference("Gemma3ForCausalLM", head_dim=16)[1])
    store = WeightStore(spec, torch.bfloat16, CPU)
    for name in ("norm.weight", "layers.0.attn.q_norm.weight", "layers.0.mlp_post_norm.weight"):
        store.put(name, torch.full((64,), 1.001))
        assert store.take(name)[0] == torch.tensor(1.001)
    store.put("layers.0.attn.o.weight", torch.ones(64, 64))
    assert store.take("layers.0.attn.o.weight").dtype == torch.bfloat16
