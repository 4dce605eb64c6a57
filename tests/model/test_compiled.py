"""All layers as one native call: to the bit what the same layers give one by one, and refused where they are others."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from paged_attn_cpu import CpuAttentionProvider

from paged_core.model import decoder as decoder_module
from paged_core.model.linear.native import NativePairsLinear, NativeQuadsLinear
from paged_core.model.place import Place
from paged_core.native.matrix import work_items
from paged_core.tracing import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: list[dict[int, list[int]]] = [
    {0: list(range(2, 40))},
    {0: [7]},
    {0: [9], 1: [1, 2, 3], 2: list(range(50, 80))},
    {2: [5], 1: [4], 0: [3]},
    {1: list(range(100, 120))},
    {0: [1], 1: [2]},
]
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", {}),
    "biases": ("Qwen2ForCausalLM", {}),
    "head norms": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "windows": ("MistralForCausalLM", {"sliding_window": 7, "head_dim": 16}),
}


@pytest.fixture(params=["none", "int8"])
def quantization(request: pytest.FixtureRequest) -> str:
    path = NativeQuadsLinear if request.param == "int8" else NativePairsLinear
    if missing := path.lacks(Place(torch.device("cpu"), torch.bfloat16, request.param)):
        pytest.skip(f"{path.name}: {missing}")
    return str(request.param)


@pytest.fixture
def model(reference: Any, paged: Any, quantization: str) -> Callable[..., Any]:
    def make(kind: str = "llama", **more: Any) -> Any:
        architecture, overrides = ARCHITECTURES[kind]
        arguments = {"dtype": torch.bfloat16, "provider": CpuAttentionProvider(), "fused_rope": True, **more}
        return paged(*reference(architecture, **overrides), quantization=quantization, **arguments)

    return make


@pytest.mark.parametrize("kind", list(ARCHITECTURES))
def test_compiled_layers_give_the_bits_of_separate_ones(
    model: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = model(kind)
    assert compiled.decoder._compiled is not None
    monkeypatch.setattr(decoder_module, "hinders", lambda layers, norm: "switched off")
    separate = model(kind)
    assert separate.decoder._compiled is None
    for step in STEPS:
        wanted = separate.step(step)
        for row, logits in compiled.step(step).items():
            assert torch.equal(logits, wanted[row])
            assert not logits.isnan().any()


def test_two_threads_give_the_same_bits(model: Callable[..., Any]) -> None:
    one = model()
    torch.set_num_threads(2)
    try:
        two = model()
        for step in STEPS:
            wanted = one.step(step)
            assert all(torch.equal(logits, wanted[row]) for row, logits in two.step(step).items())
    finally:
        torch.set_num_threads(1)


def test_a_backend_without_native_calls_is_asked_once_and_served(model: Callable[..., Any], caplog: Any) -> None:
    caplog.set_level("INFO", logger="paged_core.model")
    served = model(provider=None, fused_rope=False)
    assert served.decoder._compiled is None, "heads are rotated before attention"
    refusing = model()
    refusing.attention.native_calls = lambda *_: None
    wanted = model().step(STEPS[0])[0]
    assert torch.equal(refusing.step(STEPS[0])[0], wanted)
    assert refusing.decoder._compiled is None
    assert "the attention backend offers no native calls" in caplog.text


def test_other_layers_are_not_compiled(reference: Any, paged: Any, caplog: Any) -> None:
    caplog.set_level("INFO", logger="paged_core.model")
    common = {"provider": CpuAttentionProvider(), "fused_rope": True}
    assert paged(*reference("LlamaForCausalLM"), **common).decoder._compiled is None
    assert "its feed-forward part is not a gated SiLU with native products" in caplog.text, "float32"
    assert paged(*reference("LlamaForCausalLM"), dtype=torch.bfloat16).decoder._compiled is None


def test_every_call_is_a_span_of_the_trace(model: Callable[..., Any], quantization: str) -> None:
    traced = model()
    trace = Trace()
    traced.decoder.watch(trace)
    traced.step(STEPS[0])
    names = [span.name for span in trace.take()]
    layers = traced.spec.num_layers
    for name, count in {"norm": 2 * layers + 1, "qkv": layers, "attention": layers, "down": layers}.items():
        assert names.count(name) == count, name
    assert names.count("quantise") == (4 * layers if quantization == "int8" else 0)


def test_what_the_cache_of_items_forgets_is_still_there(model: Callable[..., Any]) -> None:
    """Long runs see more numbers of rows than the cache holds; the native code has addresses only."""
    work_items.cache_clear()
    decoding = model()
    decoding.step(STEPS[0])
    decoding.step({0: [7]})
    weight = decoding.decoder._compiled._weights[0][0]
    kept = weakref.ref(work_items(1, weight.num_panels, 1))
    work_items.cache_clear()
    gc.collect()
    assert kept() is not None
