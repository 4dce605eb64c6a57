"""Decoders that each hold a part compute together what one with everything does. Ranks are threads here."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from paged_attn_cpu import CpuAttentionProvider

from paged_core.errors import ConfigError
from paged_core.model.linear.native import NativeLinear
from paged_core.model.parallel.linear import SummedLinear
from paged_core.native.processor import has_pairs, has_quads
from paged_core.testing.ranks import LockStep

FAMILIES = (
    *("llama", "llama-biases-tied", "llama-one-kv-head", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"),
    *("opt", "opt-350m", "gpt2", "mixtral", "qwen3-moe-some-dense"),
)


def test_every_family_of_the_cases_is_named(families: list[str]) -> None:
    assert list(FAMILIES) == families


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_tokens_are_those_of_one_process(
    name: str, size: int, model_of: Any, paged_from: Any, steps: Any, agrees: Any
) -> None:
    case = model_of(name)
    logits = LockStep(size).run(lambda end: steps(paged_from(case.spec, case.weights, collective=end), case))
    agrees(logits[0], case)


@pytest.mark.parametrize("kv_heads, size", [(3, 6), (2, 6), (3, 3), (2, 2), (1, 6)])
def test_kv_heads_are_shared_out_or_held_by_several_ranks(
    kv_heads: int, size: int, model_of: Any, paged_from: Any, steps: Any, agrees: Any
) -> None:
    case = model_of("llama-biases-tied", num_key_value_heads=kv_heads)
    models = LockStep(size).run(lambda end: paged_from(case.spec, case.weights, collective=end))
    whole = paged_from(case.spec, case.weights)
    for model in models:
        assert model.caches[0].nbytes * kv_heads == whole.caches[0].nbytes * -(-kv_heads // size)
    logits = LockStep(size).run(lambda end: steps(paged_from(case.spec, case.weights, collective=end), case))
    agrees(logits[0], case)


def test_a_step_adds_up_once_for_the_embedding_and_twice_in_every_layer(model_of: Any, paged_from: Any) -> None:
    for name in ("llama", "mixtral"):
        case, group = model_of(name), LockStep(2)
        models = group.run(lambda end, case=case: paged_from(case.spec, case.weights, collective=end))
        group.run(lambda end, models=models: models[end.rank].step({0: [1, 2, 3]}))
        assert group.num_sums == 1 + 2 * case.spec.num_layers
        assert group.num_bytes == group.num_sums * 3 * case.spec.hidden_size * 4


def test_ranks_have_the_same_hidden_states_and_send_their_logits_to_rank_0(model_of: Any, paged_from: Any) -> None:
    case, group = model_of("gemma2"), LockStep(3)
    models = group.run(lambda end: paged_from(case.spec, case.weights, collective=end))
    logits = group.run(lambda end: models[end.rank].step({0: [1, 2, 3]})[0])
    assert [tuple(of_rank.shape) for of_rank in logits] == [(3, 319), (3, 107), (3, 107)]
    assert [model.decoder.logits_width for model in models] == [319, 107, 107]
    assert torch.equal(logits[0][:, 107:214], logits[1]), "capped alike"
    assert torch.equal(logits[0][:, 214:], logits[2][:, :105])


def test_logits_go_into_memory_that_is_given(model_of: Any, paged_from: Any) -> None:
    case, group = model_of("llama"), LockStep(2)
    models = group.run(lambda end: paged_from(case.spec, case.weights, collective=end).decoder)
    hidden, room = torch.randn(4, 96), torch.full((4, 319), torch.nan)
    logits = group.run(lambda end: models[end.rank].logits(hidden, room if end.rank == 0 else None))
    assert logits[0].data_ptr() == room.data_ptr()
    torch.testing.assert_close(room, paged_from(case.spec, case.weights).decoder.logits(hidden), atol=1e-5, rtol=0)


def test_the_reason_why_layers_are_not_one_native_call_is_told(
    model_of: Any, paged_from: Any, caplog: pytest.LogCaptureFixture
) -> None:
    case = model_of("llama")
    with caplog.at_level(logging.INFO, "paged_core.model"):
        LockStep(2).run(lambda end: paged_from(case.spec, case.weights, collective=end))
    assert "layers run operator by operator: the ranks of a group add up between its products" in caplog.text


def test_a_size_that_does_not_fit_is_refused_before_anything_is_loaded(model_of: Any, paged_from: Any) -> None:
    case = model_of("llama")
    narrow = replace(case.spec, num_kv_heads=2, num_heads=2, head_dim=48)
    with pytest.raises(ConfigError, match=r"2 query heads \(2 KV heads\) do not divide evenly; .*: 1, 2"):
        LockStep(3).run(lambda end: paged_from(narrow, case.weights, collective=end))


# -- other element types ----------------------------------------------------------------------------------------------


def error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits - exact).norm() / exact.norm())


def errors(case: Any, paged_from: Any, **options: Any) -> tuple[float, float, list[Any]]:
    """Of one process and of two ranks, against float32; and the ranks' decoders."""
    prompt = {0: list(range(3, 60))}
    exact = paged_from(case.spec, case.weights).step(prompt)[0]
    whole = paged_from(case.spec, case.weights, **options).step(prompt)[0]
    group = LockStep(2)
    models = group.run(lambda end: paged_from(case.spec, case.weights, collective=end, **options))
    parts = group.run(lambda end: models[end.rank].step(prompt)[0])
    return error(whole, exact), error(parts[0], exact), [model.decoder for model in models]


NATIVE = {"hidden_size": 192, "intermediate_size": 256, "head_dim": 32}
needs_native = pytest.mark.skipif(not (has_pairs() and has_quads()), reason="the processor lacks AVX512 BF16 or VNNI")


@needs_native
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_native_products_serve_ranks_as_they_serve_one_process(
    quantization: str, model_of: Any, paged_from: Any
) -> None:
    """Gated products, fused norms and the rotation inside attention stay."""
    case = model_of("llama", **NATIVE, num_key_value_heads=2)
    one, two, decoders = errors(
        case,
        paged_from,
        dtype=torch.bfloat16,
        provider=CpuAttentionProvider(),
        fused_rope=True,
        quantization=quantization,
    )
    assert two < 1.2 * one, (one, two)
    for decoder in decoders:
        layer = decoder._layers[0]
        assert layer.feed_forward.gated is not None
        assert layer.attn_norm.is_fused
        assert isinstance(layer.attention.output, SummedLinear)
        assert isinstance(layer.attention.output.part, NativeLinear)


def test_weights_of_int8_are_quantised_by_every_rank_for_itself(model_of: Any, paged_from: Any) -> None:
    case = model_of("qwen2", **NATIVE, num_key_value_heads=2)
    one, two, _ = errors(case, paged_from, quantization="int8")
    assert 0 < two < 1.2 * one, (one, two)


def test_bfloat16_is_as_exact_as_in_one_process(model_of: Any, paged_from: Any) -> None:
    for name in ("opt", "mixtral"):
        one, two, _ = errors(model_of(name), paged_from, dtype=torch.bfloat16)
        assert two < 1.3 * one, (name, one, two)


def test_a_row_that_the_model_spoiled_stays_spoiled(model_of: Any, paged_from: Any) -> None:
    """Integers know no NaN, and every rank has its own part of the logits."""
    case, group = model_of("llama"), LockStep(2)
    models = group.run(lambda end: paged_from(case.spec, case.weights, collective=end, quantization="int8").decoder)
    hidden = torch.randn(2, 96)
    hidden[1, 5] = torch.nan
    logits = group.run(lambda end: models[end.rank].logits(hidden))[0]
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()
