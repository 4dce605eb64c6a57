"""Canonical names: complete translation of saved checkpoints, and named errors for damaged ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from paged_core.errors import ModelFormatError
from paged_core.model.spec import spec_from_hf
from paged_core.model.weights import Checklist, checked, expected_shapes, translate_hf

if TYPE_CHECKING:
    from pathlib import Path

SAVED: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {},
    "Phi3ForCausalLM": {},
    "Gemma2ForCausalLM": {"head_dim": 16},
    "Gemma3ForCausalLM": {"head_dim": 16},
    "OPTForCausalLM": {"ffn_dim": 96, "do_layer_norm_before": False, "word_embed_proj_dim": 32},
    "GPT2LMHeadModel": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "Qwen3MoeForCausalLM": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16},
}


@pytest.mark.parametrize("architecture", SAVED)
def test_a_saved_checkpoint_is_translated_completely(
    architecture: str, tmp_path: Path, reference: Any, translated: Any, paged_from: Any
) -> None:
    """What save_pretrained writes (per-expert names, config without defaults) equals what the model holds."""
    from safetensors.torch import load_file

    model, config = reference(architecture, **SAVED[architecture])
    model.save_pretrained(tmp_path)
    saved_spec = spec_from_hf(json.loads((tmp_path / "config.json").read_text()))
    assert saved_spec == spec_from_hf(config)
    from_memory = dict(checked(saved_spec, translated(saved_spec, model.state_dict())))
    from_file = dict(checked(saved_spec, translated(saved_spec, load_file(tmp_path / "model.safetensors"))))
    assert from_file.keys() == from_memory.keys() == expected_shapes(saved_spec).keys()
    for name, tensor in from_memory.items():
        assert torch.equal(from_file[name], tensor), name


def test_experts_saved_one_by_one(reference: Any, translated: Any) -> None:
    """The names of Mixtral's and Qwen3-MoE's published checkpoints: w1 gate, w3 up, w2 down."""
    _, config = reference("MixtralForCausalLM", num_local_experts=4)
    spec = spec_from_hf(config)
    at = "model.layers.1.block_sparse_moe."
    inner, hidden = torch.ones(96, 64), torch.ones(64, 96)
    for name, tensor, canonical in [
        ("gate.weight", torch.ones(4, 64), "router.weight"),
        ("experts.3.w1.weight", inner, "experts.3.gate.weight"),
        ("experts.3.w3.weight", inner, "experts.3.up.weight"),
        ("experts.3.w2.weight", hidden, "experts.3.down.weight"),
    ]:
        assert translate_hf(spec, at + name, tensor) == [(f"layers.1.moe.{canonical}", tensor)]
    name = "model.layers.0.mlp.experts.2.gate_proj.weight"
    assert translate_hf(spec, name, inner) == [("layers.0.moe.experts.2.gate.weight", inner)]


def test_gpt2_without_its_prefix(reference: Any, translated: Any) -> None:
    """The first GPT-2 checkpoints have no `transformer.`, and carry causal masks."""
    model, config = reference("GPT2LMHeadModel", **SAVED["GPT2LMHeadModel"])
    spec = spec_from_hf(config)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    bare["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    with_prefix = dict(checked(spec, translated(spec, model.state_dict())))
    without = dict(checked(spec, translated(spec, bare)))
    assert with_prefix.keys() == without.keys()
    assert all(torch.equal(with_prefix[name], without[name]) for name in without)


def test_harmless_extras_are_dropped(reference: Any) -> None:
    _, config = reference("LlamaForCausalLM", tie_word_embeddings=True)
    spec = spec_from_hf(config)
    for name in ("model.rotary_emb.inv_freq", "model.layers.2.self_attn.rotary_emb.inv_freq", "lm_head.weight"):
        assert translate_hf(spec, name, torch.ones(8)) == []


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.mlp.wonder.weight",
        "model.layers.0.mlp.experts.0.wonder.weight",
        "model.layers.0.mlp.experts.gate_up_proj",
        "rope_freqs.weight",
        "attn.bias",
        "model.layers.x.mlp.up_proj.weight",
    ],
)
def test_unknown_tensors_are_named(name: str, reference: Any) -> None:
    """Museum 54: an extra tensor is an error that names it."""
    _, config = reference("LlamaForCausalLM")
    with pytest.raises(ModelFormatError, match=name):
        translate_hf(spec_from_hf(config), name, torch.ones(4, 4))


def test_fused_tensors_of_the_wrong_size_are_named(reference: Any) -> None:
    spec = spec_from_hf(reference("Phi3ForCausalLM")[1])
    for name in ("model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"):
        with pytest.raises(ModelFormatError, match=f"{name}.*\\(100, 64\\)"):
            translate_hf(spec, name, torch.ones(100, 64))
    spec = spec_from_hf(reference("MixtralForCausalLM", num_local_experts=4)[1])
    with pytest.raises(ModelFormatError, match=r"experts\.down_proj.*4 experts"):
        translate_hf(spec, "model.layers.0.mlp.experts.down_proj", torch.ones(3, 64, 96))
    spec = spec_from_hf(reference("GPT2LMHeadModel", **SAVED["GPT2LMHeadModel"])[1])
    with pytest.raises(ModelFormatError, match=r"c_attn\.weight.*matrix"):
        translate_hf(spec, "h.0.attn.c_attn.weight", torch.ones(192))


def test_gemma_norms_gain_one_in_float32(reference: Any) -> None:
    """1 + w does not fit bfloat16; folded there it would lose the low bits of w."""
    spec = spec_from_hf(reference("Gemma2ForCausalLM", head_dim=16)[1])
    stored = torch.full((64,), 0.001, dtype=torch.bfloat16)
    ((name, folded),) = translate_hf(spec, "model.layers.0.post_attention_layernorm.weight", stored)
    assert name == "layers.0.attn_post_norm.weight"
    assert torch.equal(folded, 1 + stored.float())
    assert folded.dtype == torch.float32
    assert folded[0] != 1


def test_missing_tensors_are_counted_and_named(reference: Any, translated: Any) -> None:
    model, config = reference("LlamaForCausalLM")
    spec = spec_from_hf(config)
    state = {name: tensor for name, tensor in model.state_dict().items() if "layers.1." not in name}
    with pytest.raises(ModelFormatError, match=r"9 of \d+ .* layers\.1\.attn_norm\.weight, .* and 4 more"):
        dict(checked(spec, translated(spec, state)))


def test_wrong_shapes_show_both(reference: Any) -> None:
    checklist = Checklist(spec_from_hf(reference("LlamaForCausalLM")[1]))
    with pytest.raises(ModelFormatError, match=r"embed\.weight.*\(320, 65\).*\(320, 64\)"):
        checklist.admit("embed.weight", (320, 65))


def test_a_tensor_may_come_once(reference: Any) -> None:
    checklist = Checklist(spec_from_hf(reference("LlamaForCausalLM")[1]))
    checklist.admit("embed.weight", (320, 64))
    with pytest.raises(ModelFormatError, match=r"embed\.weight.*twice"):
        checklist.admit("embed.weight", (320, 64))


def test_layers_beyond_the_config_are_refused(reference: Any) -> None:
    """More layers on disk than in the config is a mismatch, not a smaller model."""
    checklist = Checklist(spec_from_hf(reference("LlamaForCausalLM")[1]))
    with pytest.raises(ModelFormatError, match=r"layers\.3\.attn_norm\.weight"):
        checklist.admit("layers.3.attn_norm.weight", (64,))
