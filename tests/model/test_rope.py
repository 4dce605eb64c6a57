"""Rotary tables against transformers' formulas, below and above the original length (case L07)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paged_core.api.model import RopeSpec
from paged_core.errors import ModelUnsupportedError
from paged_core.model.hf_config import ConfigReader
from paged_core.model.hf_rope import read_rope
from paged_core.model.rope import attention_factor, inverse_frequencies, rope_table, rotate

ORIGINAL = 32
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL}
FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
SECTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, **LLAMA3},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn-untruncated": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "truncate": False},
    "yarn-mscale": {
        "factor": 40.0,
        "mscale": 0.9,
        "mscale_all_dim": 0.7,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn-attention": {"factor": 4.0, "attention_factor": 1.3, "original_max_position_embeddings": ORIGINAL},
    "longrope": {**FACTORS, "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "longrope-attention": {**FACTORS, "attention_factor": 1.2, "original_max_position_embeddings": ORIGINAL},
}
SCALED = [name for name in SECTIONS if name != "default"]


def maximum(name: str) -> int:
    """max_position_embeddings by transformers' convention: linear and dynamic state the unscaled length."""
    return ORIGINAL if name.split("-")[0] in ("default", "linear", "dynamic") else 4 * ORIGINAL


def config(name: str, key: str = "rope_type", section: str = "rope_scaling") -> dict[str, Any]:
    scaling = {key: name.split("-")[0], **SECTIONS[name]}
    theta = {"rope_theta": 500.0}
    return {"max_position_embeddings": maximum(name), section: scaling} | (
        theta if section == "rope_scaling" else {section: scaling | theta}
    )


def expected(name: str, length: int) -> tuple[torch.Tensor, float]:
    """What transformers rotates by in a sequence of `length` tokens."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = name.split("-")[0]
    reference = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=maximum(name),
        rope_parameters={"rope_type": kind, "rope_theta": 500.0, **SECTIONS[name]},
    )
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(reference)
    return ROPE_INIT_FUNCTIONS[kind](reference, seq_len=length)


@pytest.mark.parametrize("length", [8, ORIGINAL, ORIGINAL + 1, 2 * ORIGINAL])
@pytest.mark.parametrize("name", SECTIONS)
def test_tables_equal_the_reference_formulas(name: str, length: int) -> None:
    rope, _ = read_rope(ConfigReader(config(name)), head_dim=16, theta=1e4)
    frequencies, factor = expected(name, length)
    torch.testing.assert_close(inverse_frequencies(rope, length), frequencies, atol=1e-6, rtol=1e-6)
    angles = torch.arange(length).float()[:, None] * frequencies
    cos, sin = rope_table(rope, length, torch.device("cpu"))
    torch.testing.assert_close(cos, angles.cos() * factor, atol=1e-6, rtol=0)
    torch.testing.assert_close(sin, angles.sin() * factor, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", SCALED)
def test_scaling_changes_the_tables(name: str) -> None:
    """Guards against a default that swallows the type (L07: "dynamic ignores its factor")."""
    rope, _ = read_rope(ConfigReader(config(name)), head_dim=16, theta=1e4)
    plain = RopeSpec(rope.theta, rope.rotary_dim)
    assert not torch.allclose(inverse_frequencies(rope, 2 * ORIGINAL), inverse_frequencies(plain, 2 * ORIGINAL))


@pytest.mark.parametrize("name", SECTIONS)
def test_old_and_new_spellings_are_one(name: str) -> None:
    new = read_rope(ConfigReader(config(name)), 16, 1e4)
    assert read_rope(ConfigReader(config(name, key="type")), 16, 1e4) == new
    assert read_rope(ConfigReader(config(name, section="rope_parameters")), 16, 1e4) == new


def test_dynamic_within_the_original_length_is_unscaled() -> None:
    rope, limit = read_rope(ConfigReader(config("dynamic")), 16, 1e4)
    assert limit == 2 * ORIGINAL
    plain = inverse_frequencies(RopeSpec(rope.theta, rope.rotary_dim), ORIGINAL)
    assert torch.equal(inverse_frequencies(rope, ORIGINAL), plain)
    assert torch.equal(inverse_frequencies(rope, 3), plain)


def test_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ModelUnsupportedError, match="spiral"):
        inverse_frequencies(replace(RopeSpec(1e4, 16), kind="spiral"), 8)


def test_plain_kinds_leave_cos_and_sin_unscaled() -> None:
    assert attention_factor(RopeSpec(1e4, 16, kind="linear", factor=4.0, attention_factor=2.0)) == 1.0


def test_rotation_passes_what_is_not_rotary_and_keeps_the_norm() -> None:
    x = torch.randn(5, 3, 12, generator=torch.Generator().manual_seed(0))
    cos, sin = rope_table(RopeSpec(100.0, 8), 5, torch.device("cpu"))
    out = rotate(x, cos, sin)
    assert torch.equal(out[..., 8:], x[..., 8:])
    assert torch.equal(out[0], x[0])
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


def test_rotation_of_bfloat16_is_rounded_once() -> None:
    x = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    cos, sin = rope_table(RopeSpec(100.0, 8), 5, torch.device("cpu"))
    assert torch.equal(rotate(x, cos, sin), rotate(x.float(), cos, sin).bfloat16())


@pytest.mark.parametrize("name", SCALED)
def test_logits_of_a_scaled_llama_equal_transformers(name: str, reference: Any, paged: Any) -> None:
    """Short and long sequences; the engine's limit is the sequence's length where the kind depends on it."""
    section = {"rope_type": name.split("-")[0], "rope_theta": 500.0, **SECTIONS[name]}
    model, values = reference("LlamaForCausalLM", max_position_embeddings=maximum(name), rope_parameters=section)
    for length in (8, ORIGINAL + 9):
        prompt = torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(3)).tolist()
        ours = paged(model, values, max_length=length).step({0: prompt})[0]
        theirs = model(torch.tensor([prompt]), use_cache=False).logits[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
