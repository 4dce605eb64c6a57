"""Specs from config.json: limits, windows, and refusals that name the key."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.api.model import RopeSpec
from paged_core.errors import ModelFormatError, ModelUnsupportedError
from paged_core.model.spec import spec_from_hf

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 320,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
HALVES = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def config(architecture: str = "LlamaForCausalLM", **values: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [architecture], **values}


def test_a_plain_llama() -> None:
    spec = spec_from_hf(config(eos_token_id=[2, 3], bos_token_id=1, torch_dtype="bfloat16"))
    assert (spec.head_dim, spec.num_kv_heads, spec.scale) == (16, 2, 0.25)
    assert spec.ropes == (RopeSpec(theta=10_000.0, rotary_dim=16),)
    assert (spec.eos_token_ids, spec.bos_token_id, spec.dtype) == ((2, 3), 1, "bfloat16")
    assert (spec.windows, spec.tie_embeddings, spec.moe) == ((), False, None)
    assert spec_from_hf(config(eos_token_id=0, dtype="float16")).eos_token_ids == (0,)


@pytest.mark.parametrize(
    "scaling, limit",
    [
        ({"type": "yarn", **YARN}, 32),
        ({"rope_type": "yarn", **YARN}, 32),
        ({"type": "su", **HALVES}, 32),  # a vendor's name for longrope
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),  # Qwen2.5 with its advice
        ({"type": "yarn", "factor": 4.0}, 32),  # no stated original: the maximum stands
        ({"type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4, **YARN}, 32),
        ({"type": "longrope", **HALVES, "original_max_position_embeddings": 8}, 32),
        ({"type": "linear", "factor": 2.0}, 64),
        ({"type": "dynamic", "factor": 2.0}, 64),
        ({"type": "default"}, 32),
        (None, 32),
    ],
)
def test_the_limit_is_never_scaled_twice(scaling: dict[str, Any] | None, limit: int) -> None:
    """L06."""
    assert spec_from_hf(config(rope_scaling=scaling)).max_position == limit


@pytest.mark.parametrize("kind", ["mrope", "deepseek_yarn", "yarn2", "proportional"])
def test_unknown_rope_types_are_refused_by_name(kind: str) -> None:
    """L06: never a match on part of a name."""
    for key in ("type", "rope_type"):
        with pytest.raises(ModelUnsupportedError, match=f"'{kind}'"):
            spec_from_hf(config(rope_scaling={key: kind, **YARN}))


@pytest.mark.parametrize(
    "scaling, message",
    [
        ({"type": "linear"}, "rope_scaling.factor"),
        ({"type": "linear", "factor": "2"}, "rope_scaling.factor is '2'"),
        ({"type": "dynamic", "factor": 0}, "rope_scaling.factor is 0"),
        ({"type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "rope_scaling.low_freq_factor"),
        ({"type": "longrope", "short_factor": [1.0] * 8}, "rope_scaling.long_factor"),
        ({"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}, "long_factor has 7 entries; 8"),
        ("linear", "rope_scaling is 'linear'"),
    ],
)
def test_incomplete_scaling_names_the_key(scaling: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        spec_from_hf(config(rope_scaling=scaling))


def test_unknown_scaling_options_are_refused() -> None:
    with pytest.raises(ModelUnsupportedError, match="mrope_section"):
        spec_from_hf(config(rope_scaling={"type": "default", "mrope_section": [1, 2]}))
    with pytest.raises(ModelUnsupportedError, match="rope_parameters differs by layer type"):
        spec_from_hf(config(rope_parameters={"full_attention": {"rope_type": "default"}}))


@pytest.mark.parametrize("key", [key for key in LLAMA if key not in ("num_key_value_heads",)])
def test_a_missing_key_is_named(key: str) -> None:
    values = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(ModelFormatError, match=key):
        spec_from_hf(values)


@pytest.mark.parametrize("key", ["vocab_size", "n_embd", "n_layer", "n_head", "n_positions"])
def test_a_missing_key_of_gpt2_is_named(key: str) -> None:
    with pytest.raises(ModelFormatError, match=key):
        spec_from_hf({name: value for name, value in GPT2.items() if name != key})


@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_size", "64"),
        ("hidden_size", 64.0),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 0),
        ("vocab_size", -1),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", float("nan")),
        ("attention_bias", "no"),
        ("hidden_act", 3),
        ("eos_token_id", "</s>"),
        ("rope_theta", None),
        ("architectures", "LlamaForCausalLM"),
        ("tie_word_embeddings", 1),
        ("num_attention_heads", 5),
        ("num_key_value_heads", 3),
    ],
)
def test_an_ill_typed_or_impossible_value_is_named(key: str, value: Any) -> None:
    if value is None:
        assert spec_from_hf(config(**{key: value})) == spec_from_hf(config()), "null means absent"
        return
    with pytest.raises(ModelFormatError, match=key):
        spec_from_hf(config(**{key: value}))


@pytest.mark.parametrize(
    "values, message",
    [
        (config("LlamaForCausalML"), "'LlamaForCausalML' is not one of .* did the author mean LlamaForCausalLM"),
        (config("BertModel"), "'BertModel'"),
        (config(hidden_act="xielu"), "'xielu'"),
        (config(quantization_config={"quant_method": "gptq"}), "quantization_config"),
        (config(dtype="float8_e4m3fn"), "float8_e4m3fn"),
        (config("Qwen2ForCausalLM", layer_types=["chunked_attention"] * 4), "chunked_attention"),
        (config("Gemma2ForCausalLM", use_bidirectional_attention=True), "use_bidirectional_attention"),
        (config("Gemma3ForCausalLM", attn_logit_softcapping=50.0), "attn_logit_softcapping"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        (config("OPTForCausalLM", ffn_dim=96, layer_norm_elementwise_affine=False), "layer_norm_elementwise_affine"),
        (config(partial_rotary_factor=0.45), "7 of 16 dimensions"),
    ],
)
def test_what_is_not_run_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupportedError, match=message):
        spec_from_hf(values)


@pytest.mark.parametrize(
    "architecture, values, windows",
    [
        ("MistralForCausalLM", {}, (4096,) * 4),  # the family's default
        ("MistralForCausalLM", {"sliding_window": None}, ()),
        ("Phi3ForCausalLM", {"sliding_window": 7}, (7,) * 4),
        ("Phi3ForCausalLM", {}, ()),
        ("Qwen2ForCausalLM", {"sliding_window": 7, "max_window_layers": 2}, ()),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
            (None, None, 7, 7),
        ),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 4}, ()),
        ("Gemma2ForCausalLM", {"sliding_window": 7}, (7, None, 7, None)),
        ("Gemma3ForCausalLM", {"sliding_window": 7, "sliding_window_pattern": 3}, (7, 7, None, 7)),
        ("Gemma3ForCausalLM", {"sliding_window": 7}, (7, 7, 7, 7)),
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"] * 4}, ()),
    ],
)
def test_windows_by_layer(architecture: str, values: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert spec_from_hf(config(architecture, **values)).windows == windows


def test_layer_types_must_fit() -> None:
    with pytest.raises(ModelFormatError, match="layer_types has 1 entries for 4 layers"):
        spec_from_hf(config("Qwen2ForCausalLM", layer_types=["full_attention"]))
    with pytest.raises(ModelFormatError, match="sliding_window"):
        spec_from_hf(config("Qwen2ForCausalLM", layer_types=["sliding_attention"] * 4))


def test_old_and_new_gemma3_files_are_one() -> None:
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    spec = spec_from_hf(config("Gemma3ForCausalLM", **old))
    assert spec == spec_from_hf(config("Gemma3ForCausalLM", rope_parameters=new))
    assert spec.max_position == 32, "the factor is already in max_position_embeddings"
    assert [(rope.kind, rope.theta) for rope in spec.ropes] == [("linear", 1e6), ("default", 1e4)]
    assert spec.layer_ropes == (1, 1, 1, 1)


def test_the_text_model_of_a_multimodal_gemma3() -> None:
    """Published files leave defaults out of text_config and keep the end tokens outside it."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = spec_from_hf(
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "eos_token_id": [1, 106]}
    )
    assert (spec.num_layers, spec.num_heads, spec.head_dim, spec.vocab_size) == (34, 8, 256, 262_208)
    assert spec.windows[:6] == (1024,) * 5 + (None,)
    assert spec.eos_token_ids == (1, 106)
    with pytest.raises(ModelFormatError, match="text_config"):
        spec_from_hf({"architectures": ["Gemma3ForConditionalGeneration"]})


def test_experts_by_layer() -> None:
    values = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    spec = spec_from_hf(config("Qwen3MoeForCausalLM", **values, mlp_only_layers=[3], decoder_sparse_step=2))
    assert spec.moe_layers == (False, True, False, False)
    assert spec.moe is not None
    assert not spec.moe.normalize_top_k, "Qwen3-MoE's default"
    with pytest.raises(ModelFormatError, match="num_experts_per_tok 9"):
        spec_from_hf(config("Qwen3MoeForCausalLM", **{**values, "num_experts_per_tok": 9}))
