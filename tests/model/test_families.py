"""Every supported family against transformers on a tiny random checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

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
