"""From a Hugging Face config.json to a ModelSpec: one small function a family, refusing what it does not know."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.api.model import ModelSpec, MoeSpec
from paged_core.errors import ModelFormatError, ModelUnsupportedError
from paged_core.model.hf_config import ConfigReader
from paged_core.model.hf_rope import read_layer_ropes, read_rope

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}

# What config.json of the multimodal Gemma 3 leaves out of text_config (defaults of Gemma3TextConfig).
_GEMMA3_TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

SLIDING, FULL = "sliding_attention", "full_attention"


def spec_from_hf(config: dict[str, Any]) -> ModelSpec:
    """The ModelSpec of a parsed config.json.

    Raises ModelUnsupportedError for an architecture, rotary embedding, activation or option that is not run here, and
    ModelFormatError for a key that is missing or of the wrong type; both name it.
    """
    names = ConfigReader(config).texts("architectures")
    if not names:
        raise ModelFormatError("config.json lacks architectures; without it the model's structure is unknown")
    build = _FAMILIES.get(names[0])
    if build is None:
        near = difflib.get_close_matches(names[0], _FAMILIES, n=1)
        hint = f"; did the author mean {near[0]}?" if near else ""
        raise ModelUnsupportedError(f"architecture {names[0]!r} is not one of {', '.join(_FAMILIES)}{hint}")
    ConfigReader(config).refuse(
        "quantization_config", "quantised Hugging Face checkpoints are not run; use a GGUF file"
    )
    spec = build(ConfigReader(config), names[0])
    _check(spec)
    return spec


def _check(spec: ModelSpec) -> None:
    """Relations between keys that no single read can see."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFormatError(
            f"config.json: num_attention_heads {spec.num_heads} is not a multiple of "
            f"num_key_value_heads {spec.num_kv_heads}"
        )
    if spec.moe is not None and spec.moe.num_experts_per_token > spec.moe.num_experts:
        raise ModelFormatError(
            f"config.json: num_experts_per_tok {spec.moe.num_experts_per_token} exceeds the "
            f"{spec.moe.num_experts} experts there are"
        )


# -- families ---------------------------------------------------------------------------------------------------------


def _llama(config: ConfigReader, name: str) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    spec = replace(_rms_decoder(config, name), qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False))
    return _with_rope(spec, config)


def _mistral(config: ConfigReader, name: str) -> ModelSpec:
    spec = _rms_decoder(config, name)
    return _with_rope(replace(spec, windows=_same_window(spec, _window(config, 4096))), config)


def _qwen2(config: ConfigReader, name: str) -> ModelSpec:
    spec = replace(_rms_decoder(config, name), qkv_bias=True)
    return _with_rope(replace(spec, windows=_qwen_windows(config, spec)), config)


def _qwen3(config: ConfigReader, name: str) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    spec = replace(_rms_decoder(config, name, head_dim=128), qk_norm=True, qkv_bias=bias, output_bias=bias)
    return _with_rope(replace(spec, windows=_qwen_windows(config, spec)), config)


def _qwen3_moe(config: ConfigReader, name: str) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    spec = replace(_rms_decoder(config, name), qk_norm=True, qkv_bias=bias, output_bias=bias)
    window = _window(config, 4096) if config.flag("use_sliding_window", False) else None
    dense, every = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    moe = MoeSpec(
        # transformers 5 writes the second name
        num_experts=config.integer("num_experts" if config.has("num_experts") else "num_local_experts"),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.integer("moe_intermediate_size"),
        normalize_top_k=config.flag("norm_topk_prob", False),
    )
    layers = tuple(i not in dense and (i + 1) % every == 0 for i in range(spec.num_layers))
    spec = replace(spec, moe=moe, moe_layers=layers, windows=_same_window(spec, window))
    return _with_rope(spec, config)


def _mixtral(config: ConfigReader, name: str) -> ModelSpec:
    spec = _rms_decoder(config, name)
    moe = MoeSpec(
        num_experts=config.integer("num_local_experts"),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=spec.intermediate_size,
    )
    spec = replace(spec, moe=moe, windows=_same_window(spec, _window(config, None)))
    return _with_rope(spec, config, theta=1e6)


def _phi3(config: ConfigReader, name: str) -> ModelSpec:
    spec = _rms_decoder(config, name)
    spec = replace(spec, windows=_same_window(spec, _window(config, None)))
    return _with_rope(spec, config, original=4096)


def _gemma2(config: ConfigReader, name: str) -> ModelSpec:
    spec = replace(_gemma(config, name), attention_softcap=_cap(config, "attn_logit_softcapping", 50.0))
    kinds = config.texts("layer_types") or tuple(FULL if i % 2 else SLIDING for i in range(spec.num_layers))
    spec = replace(spec, windows=_windows(kinds, spec, _window(config, 4096)))
    return _with_rope(replace(spec, logits_softcap=_cap(config, "final_logit_softcapping", 30.0)), config)


def _gemma3(config: ConfigReader, name: str) -> ModelSpec:
    config.refuse("attn_logit_softcapping", "Gemma 3 attends without soft-capping, and so does the reference")
    spec = replace(_gemma(config, name), qk_norm=True)
    every = config.integer("sliding_window_pattern", 6)
    kinds = config.texts("layer_types") or tuple(SLIDING if (i + 1) % every else FULL for i in range(spec.num_layers))
    # max_position stays as it is: Gemma 3 states it with the linear factor of its full layers included
    return replace(
        spec,
        windows=_windows(kinds, spec, _window(config, 4096)),
        logits_softcap=_cap(config, "final_logit_softcapping", None),
        ropes=read_layer_ropes(config, spec.head_dim),
        layer_ropes=tuple(int(kind == SLIDING) for kind in kinds),
    )


def _gemma3_multimodal(config: ConfigReader, name: str) -> ModelSpec:
    """The text model of Gemma3ForConditionalGeneration; its eyes are left out."""
    if config.section("text_config") is None:
        raise ModelFormatError("config.json lacks text_config, which this architecture needs; the file is incomplete")
    outer = {key: config.raw(key) for key in ("eos_token_id", "bos_token_id", "dtype", "torch_dtype")}
    known = {key: value for key, value in outer.items() if value is not None}
    inner = {**_GEMMA3_TEXT_DEFAULTS, **config.raw("text_config"), **known}
    return _gemma3(ConfigReader(inner, "text_config."), name)


def _opt(config: ConfigReader, name: str) -> ModelSpec:
    if not config.flag("layer_norm_elementwise_affine", True):
        raise ModelUnsupportedError(
            "config.json: layer_norm_elementwise_affine = false (norms without weights) is not run"
        )
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    before, bias = config.flag("do_layer_norm_before", True), config.flag("enable_bias", True)
    width = config.integer("word_embed_proj_dim", hidden)
    return ModelSpec(
        architecture=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=_divided(hidden, heads),
        intermediate_size=config.integer("ffn_dim"),
        max_position=config.integer("max_position_embeddings"),
        norm="layer",
        norm_eps=1e-5,
        norm_bias=True,
        norm_placement="pre" if before else "post",
        final_norm=before and not config.flag("_remove_final_layer_norm", False),
        qkv_bias=bias,
        output_bias=bias,
        position="learned",
        position_offset=2,
        activation=_activation(config, "activation_function", "relu"),
        gated_mlp=False,
        mlp_bias=bias,
        embedding_projection=width if width != hidden else None,
        tie_embeddings=config.flag("tie_word_embeddings", True),
        bos_token_id=_bos(config),
        eos_token_ids=config.integers("eos_token_id"),
        dtype=_dtype(config),
    )


def _gpt2(config: ConfigReader, name: str) -> ModelSpec:
    config.refuse("scale_attn_by_inverse_layer_idx", "a scale per layer is not run")
    config.refuse("add_cross_attention", "only decoders without an encoder are run")
    hidden, heads = config.integer("n_embd"), config.integer("n_head")
    return ModelSpec(
        architecture=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("n_layer"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=_divided(hidden, heads),
        intermediate_size=config.integer("n_inner", 4 * hidden),
        max_position=config.integer("n_positions"),
        norm="layer",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        norm_bias=True,
        qkv_bias=True,
        output_bias=True,
        attention_scale=None if config.flag("scale_attn_weights", True) else 1.0,
        position="learned",
        activation=_activation(config, "activation_function", "gelu_new"),
        gated_mlp=False,
        mlp_bias=True,
        tie_embeddings=config.flag("tie_word_embeddings", True),
        bos_token_id=_bos(config),
        eos_token_ids=config.integers("eos_token_id"),
        dtype=_dtype(config),
    )


_FAMILIES: dict[str, Callable[[ConfigReader, str], ModelSpec]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "MixtralForCausalLM": _mixtral,
    "Phi3ForCausalLM": _phi3,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3_multimodal,
    "OPTForCausalLM": _opt,
    "GPT2LMHeadModel": _gpt2,
}


# -- what families share ----------------------------------------------------------------------------------------------


def _rms_decoder(config: ConfigReader, name: str, head_dim: int | None = None, tied: bool = False) -> ModelSpec:
    """The common ground of Llama and its descendants. `head_dim`: the family's default, else hidden / heads."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if head_dim is None and not config.has("head_dim"):
        head_dim = _divided(hidden, heads)
    return ModelSpec(
        architecture=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", head_dim),
        intermediate_size=config.integer("intermediate_size"),
        max_position=config.integer("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps"),
        activation=_activation(config, "hidden_act", "silu"),
        tie_embeddings=config.flag("tie_word_embeddings", tied),
        bos_token_id=_bos(config),
        eos_token_ids=config.integers("eos_token_id"),
        dtype=_dtype(config),
    )


def _gemma(config: ConfigReader, name: str) -> ModelSpec:
    config.refuse("use_bidirectional_attention", "attention to later tokens is not run")
    bias = config.flag("attention_bias", False)
    spec = _rms_decoder(config, name, head_dim=256, tied=True)
    return replace(
        spec,
        norm_placement="sandwich",
        norm_in_float32=True,
        qkv_bias=bias,
        output_bias=bias,
        attention_scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        activation=_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        embedding_scale=spec.hidden_size**0.5,
    )


def _with_rope(spec: ModelSpec, config: ConfigReader, theta: float = 1e4, original: int | None = None) -> ModelSpec:
    rope, limit = read_rope(config, spec.head_dim, theta, original)
    return replace(spec, ropes=(rope,), max_position=limit)


def _window(config: ConfigReader, default: int | None) -> int | None:
    """An absent key takes the family's default; an explicit null means full attention."""
    if not config.mentions("sliding_window"):
        return default
    return config.integer("sliding_window") if config.has("sliding_window") else None


def _same_window(spec: ModelSpec, window: int | None) -> tuple[int | None, ...]:
    return () if window is None else (window,) * spec.num_layers


def _qwen_windows(config: ConfigReader, spec: ModelSpec) -> tuple[int | None, ...]:
    window = _window(config, 4096) if config.flag("use_sliding_window", False) else None
    first = config.integer("max_window_layers", 28, minimum=0)
    sliding = [window is not None and layer >= first for layer in range(spec.num_layers)]
    return _windows(config.texts("layer_types") or tuple(SLIDING if s else FULL for s in sliding), spec, window)


def _windows(kinds: tuple[str, ...], spec: ModelSpec, window: int | None) -> tuple[int | None, ...]:
    """Window of each layer from its kind; () when no layer slides."""
    if len(kinds) != spec.num_layers:
        raise ModelFormatError(f"config.json: layer_types has {len(kinds)} entries for {spec.num_layers} layers")
    for kind in kinds:
        if kind not in (SLIDING, FULL):
            raise ModelUnsupportedError(f"config.json: layer_types holds {kind!r}; only {SLIDING} and {FULL} are run")
    if SLIDING not in kinds:
        return ()
    if window is None:
        raise ModelFormatError(f"config.json: layer_types holds {SLIDING}, but sliding_window is null or switched off")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _cap(config: ConfigReader, key: str, default: float | None) -> float | None:
    """A soft cap; an explicit null means none."""
    if not config.mentions(key):
        return default
    return config.number(key) if config.has(key) else None


def _activation(config: ConfigReader, key: str, default: str) -> str:
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        raise ModelUnsupportedError(f"config.json: {key} {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _divided(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ModelFormatError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def _bos(config: ConfigReader) -> int | None:
    return config.integer("bos_token_id", minimum=0) if config.has("bos_token_id") else None


def _dtype(config: ConfigReader) -> str:
    name = config.text("dtype", config.text("torch_dtype", "float32")).removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16"):
        raise ModelUnsupportedError(f"config.json: dtype {name!r} is not one of float32, bfloat16, float16")
    return name
