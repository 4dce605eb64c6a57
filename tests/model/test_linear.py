"""Every path of a linear layer against the exact product, its batch invariance, the choice, and the fusing store."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from paged_core.errors import ConfigError
from paged_core.model.linear import Linears, choice
from paged_core.model.linear.int8 import OneDnnInt8Linear
from paged_core.model.linear.native import NativePairsLinear, NativeQuadsLinear
from paged_core.model.linear.onednn import OneDnnLinear
from paged_core.model.linear.plain import PlainLinear
from paged_core.model.linear.zentorch import ZentorchInt8Linear
from paged_core.model.place import Place
from paged_core.model.spec import spec_from_hf
from paged_core.model.store import WeightStore

CPU = torch.device("cpu")
BFLOAT16, FLOAT32, FLOAT16 = torch.bfloat16, torch.float32, torch.float16
CASES = [
    (PlainLinear, FLOAT32, "none", 1e-5),
    (PlainLinear, BFLOAT16, "none", 2e-2),
    (PlainLinear, FLOAT16, "none", 2e-2),
    (OneDnnLinear, FLOAT32, "none", 1e-5),
    (OneDnnLinear, BFLOAT16, "none", 2e-2),
    (OneDnnInt8Linear, FLOAT32, "int8", 6e-2),
    (OneDnnInt8Linear, BFLOAT16, "int8", 6e-2),
    (ZentorchInt8Linear, BFLOAT16, "int8", 6e-2),
    (NativePairsLinear, BFLOAT16, "none", 2e-2),
    (NativeQuadsLinear, BFLOAT16, "int8", 6e-2),
]
IDS = [f"{path.name}-{str(dtype)[6:]}" for path, dtype, _, _ in CASES]


def serving(path: Any, dtype: torch.dtype, quantization: str) -> Any:
    if missing := path.lacks(Place(CPU, dtype, quantization)):
        pytest.skip(f"{path.name}: {missing}")
    return path


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("path, dtype, quantization, tolerance", CASES, ids=IDS)
def test_products_equal_the_exact_one(
    path: Any, dtype: torch.dtype, quantization: str, tolerance: float, has_bias: bool
) -> None:
    make = serving(path, dtype, quantization)
    generator = torch.Generator().manual_seed(0)
    for out, inner in ((1, 1), (7, 5), (96, 64), (301, 40), (40, 6144)):
        weight = (torch.randn(out, inner, generator=generator) * inner**-0.5).to(dtype)
        bias = torch.randn(out, generator=generator).to(dtype) if has_bias else None
        exact_weight = weight.double()
        layer = make(weight, bias)
        for rows in (1, 2, 7, 33, 70):
            x = torch.randn(rows, inner, generator=generator).to(dtype)
            exact = functional.linear(x.double(), exact_weight, None if bias is None else bias.double())
            torch.testing.assert_close(layer(x).double(), exact, atol=tolerance, rtol=tolerance)
            assert layer(x).dtype == dtype


@pytest.mark.parametrize("path, dtype, quantization, tolerance", CASES[3:], ids=IDS[3:])
@pytest.mark.parametrize(
    "out, inner", [(960, 576), (576, 1536), (3072, 576), (576, 576), (512, 2048), (70, 100), (96, 5632)]
)
def test_a_row_is_the_same_to_the_bit_whatever_its_neighbours(
    path: Any, dtype: torch.dtype, quantization: str, tolerance: float, out: int, inner: int
) -> None:
    """Batch invariance, from one row to 140; SmolLM2's shapes and longer rows. torch's own product promises nothing."""
    layer = serving(path, dtype, quantization)((torch.randn(out, inner) * inner**-0.5).to(dtype), None)
    x = torch.randn(140, inner).to(dtype)
    together = layer(x)
    for rows in (2, 3, 4, 7, 8, 15, 16, 17, 33, 65, 130):
        for first in (0, 58):
            part = layer(x[first : first + rows].contiguous())
            assert torch.equal(part, together[first : first + len(part)]), f"{rows} rows from {first}"
    alone = torch.cat([layer(x[i : i + 1].contiguous()) for i in range(64)])
    assert torch.equal(alone, together[:64])


@pytest.mark.parametrize("path, dtype, quantization, tolerance", CASES, ids=IDS)
def test_a_spoiled_row_spoils_no_other(path: Any, dtype: torch.dtype, quantization: str, tolerance: float) -> None:
    layer = serving(path, dtype, quantization)(torch.randn(64, 32).to(dtype), None)
    x = torch.randn(6, 32).to(dtype)
    clean = layer(x)
    x[2, 5], x[4, 0] = torch.nan, torch.inf
    others = [0, 1, 3, 5]
    assert torch.equal(layer(x)[others], clean[others])


def test_the_choice_names_what_faster_paths_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeQuadsLinear, "lacks", lambda place: "the processor has no AVX512-VNNI")
    monkeypatch.setattr(ZentorchInt8Linear, "lacks", lambda place: "zentorch is not installed")
    linears = Linears(Place(CPU, BFLOAT16, "int8"))
    assert linears.quantized
    lost = "native_int8: the processor has no AVX512-VNNI; zentorch_int8: zentorch is not installed"
    assert str(linears) == f"onednn_int8 ({lost})"
    assert isinstance(linears.make(torch.ones(2, 2, dtype=BFLOAT16)), OneDnnInt8Linear)
    monkeypatch.undo()
    assert str(Linears(Place(CPU, FLOAT32))) == "onednn"
    assert isinstance(Linears(Place(CPU, FLOAT16)).make(torch.ones(2, 2)), PlainLinear)


def test_a_processor_without_avx_computes_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert str(Linears(Place(CPU, FLOAT32))) == "torch (onednn: the processor has no AVX2)"
    monkeypatch.setattr(NativeQuadsLinear, "lacks", lambda place: "the processor has no AVX512-VNNI")
    with pytest.raises(ConfigError, match=r"no linear layer for quantization int8 on cpu: .*no AVX2"):
        Linears(Place(CPU, BFLOAT16, "int8"))


def test_int8_is_refused_on_other_devices() -> None:
    with pytest.raises(ConfigError, match="it serves the CPU, not meta"):
        Linears(Place(torch.device("meta"), BFLOAT16, "int8"))


def test_the_decoder_is_the_same_without_packing(reference: Any, paged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = reference("Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)
    packed = paged(model, config).step({0: [1, 2, 3]})[0]
    monkeypatch.setattr(choice, "PATHS", (PlainLinear,))
    torch.testing.assert_close(paged(model, config).step({0: [1, 2, 3]})[0], packed, atol=1e-5, rtol=0)


def test_tensors_of_the_right_kind_are_kept_without_a_copy(reference: Any) -> None:
    store = WeightStore(spec_from_hf(reference("LlamaForCausalLM")[1]), Place(CPU, torch.float32))
    tensor = torch.ones(320, 64)
    store.put("embed.weight", tensor)
    assert store.take("embed.weight").data_ptr() == tensor.data_ptr()
    assert store.take_if_any("embed.weight") is None, "what was taken is gone"


def test_parts_are_fused_in_any_order(reference: Any) -> None:
    spec = spec_from_hf(reference("LlamaForCausalLM")[1])
    store, size = WeightStore(spec, Place(CPU, torch.bfloat16)), spec.intermediate_size
    for value, part in ((1.0, "up"), (0.0, "gate")):
        store.put(f"layers.0.mlp.{part}.weight", torch.full((size, 64), value))
    fused = store.take("layers.0.mlp.gate_up.weight")
    assert fused.dtype == torch.bfloat16
    assert fused[:, 0].tolist() == [0.0] * size + [1.0] * size


def test_gemma_norms_stay_in_float32(reference: Any) -> None:
    spec = spec_from_hf(reference("Gemma3ForCausalLM", head_dim=16)[1])
    store = WeightStore(spec, Place(CPU, torch.bfloat16))
    for name in ("norm.weight", "layers.0.attn.q_norm.weight", "layers.0.mlp_post_norm.weight"):
        store.put(name, torch.full((64,), 1.001))
        assert store.take(name)[0] == torch.tensor(1.001)
    store.put("embed.weight", torch.ones(320, 64))
    assert store.take("embed.weight").dtype == torch.bfloat16
