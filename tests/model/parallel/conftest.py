"""Models whose heads can be cut for two and for three ranks, and what one process computes with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from paged_core.model.spec import spec_from_hf

GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 50, "head_dim": 16}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-biases-tied": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-one-kv-head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "phi3": ("Phi3ForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3ForCausalLM", {**GEMMA, "num_hidden_layers": 4, "sliding_window_pattern": 3}),
    "opt": ("OPTForCausalLM", {"ffn_dim": 98}),
    "opt-350m": ("OPTForCausalLM", {"ffn_dim": 98, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 3, "n_positions": 64}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe-some-dense": ("Qwen3MoeForCausalLM", {**MOE, "norm_topk_prob": True, "mlp_only_layers": [1]}),
}
"""By name. Inner sizes and the vocabulary divide evenly for nobody."""

SHAPE = {
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "hidden_size": 96,
    "intermediate_size": 94,
    "vocab_size": 319,
}
PROMPT = torch.randint(0, 256, (21,), generator=torch.Generator().manual_seed(2)).tolist()
NUM_TOKENS = 8


class Case(NamedTuple):
    """A model, and what one process says: logits of the prompt, and the greedy tokens after it."""

    spec: Any
    weights: list[tuple[str, torch.Tensor]]
    logits: torch.Tensor
    tokens: list[int]


@pytest.fixture
def families() -> list[str]:
    return list(CASES)


@pytest.fixture
def prompt() -> list[int]:
    return PROMPT


@pytest.fixture(scope="session")
def made() -> dict[Any, Case]:
    return {}


@pytest.fixture
def model_of(made: dict[Any, Case], reference: Any, paged_from: Any, translated: Any) -> Any:
    """Make a case once: by name, with other heads if wanted."""

    def make(name: str, **shape: Any) -> Case:
        key = (name, *sorted(shape.items()))
        if key not in made:
            architecture, overrides = CASES[name]
            model, config = reference(architecture, **{**SHAPE, **overrides, **shape})
            spec = spec_from_hf(config)
            weights = [(part, tensor.clone()) for part, tensor in translated(spec, model.state_dict())]
            whole = paged_from(spec, weights)
            logits = whole.step({0: PROMPT})[0]
            made[key] = Case(spec, weights, logits, whole.greedy(PROMPT, NUM_TOKENS, chunk=6, row=1))
        return made[key]

    return make


@pytest.fixture
def steps() -> Any:
    """Run a rank's PagedModel: logits of the prompt, then of every token of one process, each fed as that drew it."""

    def run(model: Any, case: Case) -> list[torch.Tensor]:
        return [model.step({0: part})[0] for part in (PROMPT, *([token] for token in case.tokens[:-1]))]

    return run


@pytest.fixture
def agrees() -> Any:
    """What rank 0 computed by `steps` is what one process computed."""

    def check(logits: list[torch.Tensor], case: Case) -> None:
        torch.testing.assert_close(logits[0], case.logits, atol=1e-5, rtol=0)
        assert case.logits.std() > 0.1, "the model is too flat to tell anything"
        assert [int(of_step[-1].argmax()) for of_step in logits] == case.tokens

    return check
