"""Every supported family against transformers on a tiny random checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from paged_core.errors import ModelFormatError
from paged_core.model.spec import spec_from_hf

GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}
OPT = {"ffn_dim": 96}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16}
FULL, SLIDING = "full_attention", "sliding_attention"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama-biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head-wide-heads": ("LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 24}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-layer-types": (
        "Qwen3ForCausalLM",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": [SLIDING, FULL, SLIDING],
            "attention_bias": True,
        },
    ),
    "phi3": ("Phi3ForCausalLM", {}),
    "phi3-partial-window": (
        "Phi3ForCausalLM",
        {"sliding_window": 6, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
    ),
    "phi3-longrope": (
        "Phi3ForCausalLM",
        {
            "original_max_position_embeddings": 16,
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0 + 0.1 * i for i in range(8)],
                "long_factor": [2.0 + i for i in range(8)],
            },
        },
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": ("Gemma3ForCausalLM", {**GEMMA, "num_hidden_layers": 4, "sliding_window_pattern": 3}),
    "gemma3-scaled": (
        "Gemma3ForCausalLM",
        {
            **GEMMA,
            "layer_types": [SLIDING, FULL, SLIDING],
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
                SLIDING: {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "opt": ("OPTForCausalLM", OPT),
    "opt-350m": ("OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt-no-bias-untied": (
        "OPTForCausalLM",
        {**OPT, "enable_bias": False, "tie_word_embeddings": False, "activation_function": "gelu"},
    ),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-untied": (
        "GPT2LMHeadModel",
        {**GPT2, "tie_word_embeddings": False, "n_inner": 80, "scale_attn_weights": False},
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window": ("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": 6}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**MOE, "norm_topk_prob": True}),
    "qwen3-moe-some-dense": ("Qwen3MoeForCausalLM", {**MOE, "mlp_only_layers": [1], "num_experts_per_tok": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens_equal_transformers(case: str, reference: Any, paged: Any, agree: Any) -> None:
    architecture, overrides = CASES[case]
    model, config = reference(architecture, **overrides)
    agree(model, paged(model, config))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_greedy_tokens_do_not_depend_on_the_block_size(block_size: int, reference: Any, paged: Any, agree: Any) -> None:
    model, config = reference("LlamaForCausalLM")
    agree(model, paged(model, config, block_size=block_size), length=9, num_tokens=12)


def test_a_sequence_does_not_depend_on_its_batch(reference: Any, paged: Any) -> None:
    """A20, A21: near-identical and ragged prompts in one batch give what each gives alone."""
    model, config = reference("LlamaForCausalLM")
    prompts = {row: [7, 11, 13, 17, 19 + row, 23, 29, 31][: (1, 5, 7, 8, 8, 8)[row]] for row in range(6)}
    for rows in ([0], [3, 4], list(range(6)), [5, 2, 4, 0]):
        together = paged(model, config)
        outputs = {row: [] for row in rows}
        for _ in range(8):
            logits = together.step({row: outputs[row][-1:] or prompts[row] for row in rows})
            for row in rows:
                outputs[row].append(int(logits[row][-1].argmax()))
        for row in rows:
            assert outputs[row] == paged(model, config).greedy(prompts[row], 8, chunk=8), (rows, row)


def test_prefill_and_decode_share_a_step(reference: Any, paged: Any) -> None:
    model, config = reference("Qwen3ForCausalLM", head_dim=16)
    mixed, alone = paged(model, config), paged(model, config)
    mixed.step({0: [1, 2, 3, 4, 5]})
    alone.step({0: [1, 2, 3, 4, 5]})
    logits = mixed.step({1: [9, 8, 7, 6, 5, 4], 0: [6]})
    torch.testing.assert_close(logits[0], alone.step({0: [6]})[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits[1], alone.step({1: [9, 8, 7, 6, 5, 4]})[1], atol=1e-5, rtol=0)


def test_identical_experts_are_one_dense_layer(reference: Any, paged_from: Any, translated: Any) -> None:
    """With all experts alike and weights that sum to one, the mixture is its expert."""
    model, config = reference("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=3)
    sparse = spec_from_hf(config)
    dense = replace(sparse, moe=None)
    for layer in model.model.layers:
        for stacked in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            stacked.copy_(stacked[0].clone().expand_as(stacked))
    weights = dict(translated(sparse, model.state_dict()))
    plain = {
        name.replace("moe.experts.0.", "mlp."): tensor
        for name, tensor in weights.items()
        if "router" not in name and not re.search(r"experts\.[1-9]", name)
    }
    prompt = {0: [5, 4, 3, 2, 1, 200]}
    logits = paged_from(sparse, weights.items()).step(prompt)[0]
    torch.testing.assert_close(logits, paged_from(dense, plain.items()).step(prompt)[0], atol=1e-5, rtol=0)


def test_a_tied_head_equals_an_explicit_copy(reference: Any, paged_from: Any, translated: Any) -> None:
    """L04: a checkpoint without a head is complete when it is tied, and the head is the embedding."""
    model, config = reference("LlamaForCausalLM", tie_word_embeddings=True)
    tied = spec_from_hf(config)
    untied = replace(tied, tie_embeddings=False)
    without_head = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    explicit = dict(translated(untied, without_head)) | {"head.weight": model.lm_head.weight}
    prompt = {0: [1, 2, 3, 4]}
    ours = paged_from(tied, translated(tied, without_head)).step(prompt)[0]
    assert torch.equal(ours, paged_from(untied, explicit.items()).step(prompt)[0])
    with pytest.raises(ModelFormatError, match=r"head\.weight"):
        paged_from(untied, translated(untied, without_head))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_bfloat16_rounds_like_transformers(architecture: str, reference: Any, paged: Any) -> None:
    """Norms and embeddings keep the reference's rounding order; attention is in float32 here, so not all bits agree."""
    model, config = reference(architecture, **(GEMMA if architecture.startswith("Gemma") else {}))
    exact = paged(model, config)
    rounded = paged(model, config, dtype=torch.bfloat16)
    prompt = list(range(40, 60))
    reference_logits = model.bfloat16()(torch.tensor([prompt]), use_cache=False).logits[0].float()
    truth = exact.step({0: prompt})[0]
    ours = rounded.step({0: prompt})[0]
    assert (ours - reference_logits).abs().mean() <= 1.2 * (truth - reference_logits).abs().mean()
    assert (ours - truth).abs().mean() <= 1.1 * (reference_logits - truth).abs().mean()


def test_positions_beyond_the_limit_are_refused(reference: Any, paged: Any) -> None:
    """L06: no table is read past its end."""
    model, config = reference("LlamaForCausalLM", max_position_embeddings=32)
    engine = paged(model, config)
    engine.step({0: list(range(32))})
    with pytest.raises(IndexError):
        engine.step({0: [1]})


def test_an_attention_backend_may_rotate_itself(reference: Any, paged: Any) -> None:
    """With `fused_rope` the decoder hands over q and k as projected, and tables in float32 on request."""
    model, config = reference("LlamaForCausalLM")
    engine = paged(model, config, fused_rope=True)
    seen = []
    forward = engine.attention.forward

    def spy(layer: Any, q: torch.Tensor, *rest: Any) -> None:
        seen.append((layer.rope, q.clone()))
        forward(layer, q, *rest)

    engine.attention.forward = spy
    engine.step({0: [3, 3, 3]})
    assert [rope for rope, _ in seen] == [0, 0, 0]
    assert torch.equal(seen[0][1][0], seen[0][1][2]), "equal tokens, unrotated: equal queries"
    ((cos, sin),) = engine.decoder.rope_tables(torch.tensor([0, 5]))
    assert cos.shape == (2, 8)
    assert cos.dtype == torch.float32
    assert cos[0].eq(1).all()
    assert sin[0].eq(0).all()


def test_gemma_scales_its_embedding_by_a_rounded_factor(reference: Any, paged: Any) -> None:
    """sqrt(72) = 8.485 is 8.5 in bfloat16, and the reference multiplies by that."""
    model, config = reference("Gemma2ForCausalLM", **GEMMA, hidden_size=72)
    engine = paged(model, config, dtype=torch.bfloat16)
    ids = torch.arange(20)
    expected = model.bfloat16().model.embed_tokens(ids)
    assert torch.equal(engine.decoder.embedded(ids, ids), expected)
