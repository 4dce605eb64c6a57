"""GGUF files converted from Hugging Face checkpoints load as the checkpoints do: same spec, same canonical tensors.

The checkpoints' names and shapes come from transformers, the tensor names of the files from the `gguf` package, and the
three rearrangements of llama.cpp's convert_hf_to_gguf.py are written out here.
"""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from paged_core.errors import ModelFormatError, ModelUnsupportedError
from paged_core.model.spec import spec_from_hf
from paged_core.model.weights import translate_hf

BASE = {
    "vocab_size": 262,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "bos_token_id": 257,
    "eos_token_id": [256, 260],
    "torch_dtype": "float32",
}
METADATA = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 50000.0,
}
SIZE_16 = {"attention.key_length": 16, "attention.value_length": 16}
GEMMA = {**SIZE_16, "attention.sliding_window": 16}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
# name: (transformers class, changes to BASE, gguf architecture, changes to METADATA)
FAMILIES = {
    "llama": ("LlamaForCausalLM", {"tie_word_embeddings": False}, "llama", {"rope.dimension_count": 8}),
    "llama-tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}, "llama", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 16}, "llama", {"attention.sliding_window": 16}),
    "qwen2": ("Qwen2ForCausalLM", {}, "qwen2", {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, "qwen3", SIZE_16),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None}, "phi3", {}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True, **CAPS},
        "gemma2",
        {**GEMMA, **CAPS},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True},
        "gemma3",
        GEMMA,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "n_inner": 64},
        "gpt2",
        {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 4},
    ),
}


def checkpoint(name):
    """(config, state dict) of a small random model of the family."""
    import transformers

    class_name, changes, *_ = FAMILIES[name]
    model_class = getattr(transformers, class_name)
    config = {**BASE, **changes, "architectures": [class_name]}
    hidden = {"architectures", "torch_dtype"}
    parameters = {key: value for key, value in config.items() if key not in hidden}
    theta = parameters.pop("rope_theta")
    if "gemma" not in name:
        parameters["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    parameters["pad_token_id"] = 0
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**parameters))
    state = {key: torch.randn(tensor.shape) for key, tensor in model.state_dict().items()}
    if config.get("tie_word_embeddings", name == "gpt2"):
        state.pop("lm_head.weight", None)
    config.setdefault("tie_word_embeddings", name == "gpt2")
    return config, state


def converted(name, state):
    """The tensors convert_hf_to_gguf.py writes."""
    architecture = FAMILIES[name][2]
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(kind, 2)
    tensors = {}
    for key, tensor in state.items():
        if architecture == "gpt2" and key.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        array = tensor.numpy()
        if architecture == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
            heads = 4 if "q_proj" in key else 2
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if architecture.startswith("gemma") and key.endswith("norm.weight"):
            array = array + 1
        if architecture == "gpt2" and key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = array.T
        tensors[names.get_name(key, (".weight", ".bias"))] = np.ascontiguousarray(array)
    assert None not in tensors
    return tensors


@pytest.mark.parametrize("name", FAMILIES)
def test_a_converted_checkpoint_loads_as_the_original(name, files, open_loader):
    config, state = checkpoint(name)
    _, _, architecture, changes = FAMILIES[name]
    path = files.write(architecture, {**METADATA, **changes}, converted(name, state))
    loader = open_loader(path)
    wanted = spec_from_hf(config)
    assert replace(loader.spec(), extra=()) == wanted
    canonical = dict(pair for key, tensor in state.items() for pair in translate_hf(wanted, key, tensor))
    got = dict(loader.weights())
    assert got.keys() == canonical.keys()
    for key, tensor in canonical.items():
        torch.testing.assert_close(got[key], tensor, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision_stays_as_stored(kind, dtype, files, open_loader):
    quantization = gguf.GGMLQuantizationType[kind]
    original = {}
    tensors = {}
    for key, array in files_llama().items():
        stored = gguf.quantize(array, quantization) if array.ndim == 2 else array
        tensors[key] = (stored, quantization) if array.ndim == 2 else array
        original[key] = torch.from_numpy(array)
    loader = open_loader(files.llama(tensors=tensors))
    assert loader.spec().dtype == str(dtype).removeprefix("torch.")
    weights = dict(loader.weights())
    assert weights["embed.weight"].dtype == dtype
    torch.testing.assert_close(weights["embed.weight"], original["token_embd.weight"].to(dtype), rtol=0, atol=0)
    assert weights["norm.weight"].dtype == torch.float32


def files_llama():
    random = np.random.default_rng(0)
    shapes = {"token_embd": (262, 32), "blk.0.attn_norm": (32,), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32)}
    shapes |= {"blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,), "output_norm": (32,)}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    return {f"{key}.weight": random.standard_normal(shape, np.float32) for key, shape in shapes.items()}


def test_quantised_tensors_come_as_float32_in_their_rows(files, open_loader):
    kind = gguf.GGMLQuantizationType.Q8_0
    array = files_llama()["blk.0.attn_v.weight"]
    stored = gguf.quantize(array, kind)
    weights = dict(open_loader(files.llama(tensors={"blk.0.attn_v.weight": (stored, kind)})).weights())
    wanted = torch.from_numpy(gguf.dequantize(stored, kind))
    torch.testing.assert_close(weights["layers.0.attn.v.weight"], wanted, rtol=0, atol=0)


def test_quantised_tensors_that_are_kept_are_not_overwritten(files, open_loader):
    kind = gguf.GGMLQuantizationType.Q8_0
    arrays = {name: array for name, array in files_llama().items() if array.ndim == 2}
    stored = {name: (gguf.quantize(array, kind), kind) for name, array in arrays.items()}
    kept = dict(open_loader(files.llama(tensors=stored)).weights())
    for name, layer in (("ffn_gate", "mlp.gate"), ("ffn_up", "mlp.up"), ("attn_v", "attn.v")):
        wanted = torch.from_numpy(gguf.dequantize(*stored[f"blk.0.{name}.weight"]))
        torch.testing.assert_close(kept[f"layers.0.{layer}.weight"], wanted, rtol=0, atol=0)


def test_a_loader_answers_again_after_it_let_go_of_its_vocabulary(files, open_loader):
    loader = open_loader(files.llama())
    spec, text = loader.spec(), loader.tokenizer().encode("a b")
    names = [name for name, _ in loader.weights()]
    assert loader.spec() == spec
    assert loader.tokenizer().encode("a b") == text
    assert [name for name, _ in loader.weights()] == names


def test_an_unread_type_names_tensor_and_type_before_anything_is_read(files, open_loader):
    stored = np.zeros((262, 18), np.uint8)  # 32 values of IQ4_NL a row
    kind = gguf.GGMLQuantizationType.IQ4_NL
    loader = open_loader(files.llama(tensors={"token_embd.weight": (stored, kind)}))
    with pytest.raises(ModelUnsupportedError, match=r"'token_embd.weight' is of type IQ4_NL"):
        next(loader.weights())


def test_a_missing_and_an_extra_tensor_are_named(files, open_loader):
    with pytest.raises(ModelFormatError, match=r"layers\.0\.mlp\.up\.weight"):
        list(open_loader(files.llama(drop=("blk.0.ffn_up.weight",))).weights())
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    with pytest.raises(ModelFormatError, match=r"'blk\.0\.attn_sinks\.weight'"):
        list(open_loader(files.llama(tensors=extra)).weights())


def test_a_tensor_of_another_shape_is_named(files, open_loader):
    other = {"blk.0.ffn_up.weight": np.zeros((63, 32), np.float32)}
    with pytest.raises(ModelFormatError, match=r"layers\.0\.mlp\.up\.weight.*\(63, 32\).*\(64, 32\)"):
        list(open_loader(files.llama(tensors=other)).weights())


def test_the_vocabulary_is_as_long_as_its_rows_whatever_the_metadata_counts(files, open_loader):
    rows = np.zeros((301, 32), np.float32)
    loader = open_loader(files.llama({"vocab_size": 262}, {"token_embd.weight": rows}))
    assert loader.spec().vocab_size == 301
    assert dict(loader.weights())["embed.weight"].shape == (301, 32)


def test_llama3_frequency_divisors_are_honoured(files, open_loader):
    """They equal the llama3 formula they were computed from."""
    from paged_core.model.rope import attention_factor, inverse_frequencies

    formula = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {**BASE, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "rope_theta": 10000.0}
    wanted = spec_from_hf({**config, "rope_scaling": {**formula, "original_max_position_embeddings": 16}}).ropes[0]
    plain = replace(wanted, kind="default")
    divisors = (inverse_frequencies(plain, 64) / inverse_frequencies(wanted, 64)).numpy()
    assert divisors.max() > 4
    loader = open_loader(files.llama(tensors={"rope_freqs.weight": divisors}))
    got = loader.spec().ropes[0]
    for length in (8, 64, 1000):
        torch.testing.assert_close(inverse_frequencies(got, length), inverse_frequencies(wanted, 64))
    assert attention_factor(got) == 1.0
    assert "rope_freqs.weight" not in dict(loader.weights())


def test_divisors_of_another_length_are_refused(files, open_loader):
    with pytest.raises(ModelUnsupportedError, match=r"'rope_freqs.weight' \(3 values\)"):
        open_loader(files.llama(tensors={"rope_freqs.weight": np.ones(3, np.float32)})).spec()


def test_yarn_and_linear_scaling_come_from_the_metadata(files, open_loader):
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    rope = open_loader(files.llama(yarn)).spec().ropes[0]
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 16)
    rope = open_loader(files.llama({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})).spec().ropes[0]
    assert (rope.kind, rope.factor) == ("linear", 2.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"logit_scale": 0.5}, "llama.logit_scale"),
        ({"rope.scaling.type": "longrope"}, "'longrope'"),
        ({"rope.dimension_count": 4}, "rope.dimension_count 4 of 8"),
        ({"attention.value_length": 4}, "different size"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, told, files, open_loader):
    with pytest.raises(ModelUnsupportedError, match=told):
        open_loader(files.llama(change)).spec()


def test_an_unknown_architecture_is_refused_by_name(files, open_loader):
    path = files.write("mamba", {}, {"token_embd.weight": np.zeros((4, 4), np.float32)})
    with pytest.raises(ModelUnsupportedError, match="'mamba' is not one of llama"):
        open_loader(path).spec()


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count", "token_embd.weight"])
def test_missing_metadata_is_named(key, files, open_loader):
    with pytest.raises(ModelFormatError, match=key):
        open_loader(files.llama(drop=(key,))).spec()


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "block_count", "context_length"])
@pytest.mark.parametrize("value", [0, "many", 0.5])
def test_metadata_of_the_wrong_kind_is_a_model_error(key, value, files, open_loader):
    with pytest.raises(ModelFormatError, match=r"model\.gguf"):
        open_loader(files.llama({key: value})).spec()
