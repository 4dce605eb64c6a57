"""From a GGUF file's metadata to a ModelSpec, by way of the Hugging Face config the file was converted from.

Only what the metadata states is used: an architecture, or a key of a known architecture, that is not listed here is
refused by name, since a model run under a wrong guess answers noise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.errors import ModelError, ModelFormatError, ModelUnsupportedError
from paged_core.model.spec import spec_from_hf

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.api.model import ModelSpec
    from paged_load_gguf.gguf_file import GgufFile

    Config = dict[str, Any]

ROPE_FREQUENCIES = "rope_freqs.weight"  # llama3 scaling, baked into one divisor for every rotated pair
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = frozenset({ROPE_FREQUENCIES, ROPE_SHORT, ROPE_LONG})

_COMMON_KEYS = frozenset(
    (
        *("vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.causal"),
        *("rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"),
        *("rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.finetuned"),
    )
)
_FAMILY_KEYS: dict[str, frozenset[str]] = {
    "llama": frozenset({"expert_count", "expert_used_count"}),
    "qwen3moe": frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"}),
    "gemma2": frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
    "gemma3": frozenset({"final_logit_softcapping", "rope.freq_base_swa"}),
    "gpt2": frozenset({"attention.layer_norm_epsilon"}),
}
_KINDS: dict[str, type] = {  # all others are whole numbers
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"), float),
    **dict.fromkeys(("rope.freq_base", "rope.freq_base_swa", "rope.scaling.factor", "rope.scaling.attn_factor"), float),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), float),
    **dict.fromkeys(("attention.causal", "rope.scaling.finetuned"), bool),
    "rope.scaling.type": str,
}


class ModelMetadata:
    """The `<architecture>.*` keys of a file, checked, and the few tensors that say something about the structure."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.where = str(file.path)
        self.architecture: str = file.metadata.get("general.architecture", "")
        if self.architecture not in _FAMILIES:
            raise ModelUnsupportedError(
                f"{self.where}: architecture {self.architecture!r} is not one of {', '.join(_FAMILIES)}"
            )
        prefix = self.architecture + "."
        self._values = {key[len(prefix) :]: v for key, v in file.metadata.items() if key.startswith(prefix)}
        known = _COMMON_KEYS | _FAMILY_KEYS.get(self.architecture, frozenset())
        unknown = sorted(set(self._values) - known)
        if unknown:
            raise ModelUnsupportedError(f"{self.where}: {prefix}{unknown[0]} changes the model in a way not known here")

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; one value for all layers where the file lists it per layer."""
        value = self._values.get(key, default)
        if isinstance(value, list):
            if not value or any(item != value[0] for item in value):
                raise ModelUnsupportedError(
                    f"{self.where}: {self.architecture}.{key} differs by layer, which is not run"
                )
            value = value[0]
        kind = _KINDS.get(key, int)
        if value is not None and type(value) is not kind:
            name = f"{self.architecture}.{key}"
            raise ModelFormatError(f"{self.where}: metadata key {name} is {value!r}, not of type {kind.__name__}")
        return value

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        value = self.get(key)
        if value is None:
            raise ModelFormatError(f"{self.where}: metadata key {self.architecture}.{key} is missing")
        return value

    def has_tensor(self, name: str) -> bool:
        """Whether the file holds a tensor."""
        return name in self.file.tensors

    def factors(self, name: str) -> list[float]:
        """A small float32 tensor as numbers."""
        tensor = self.file.tensors[name]
        if tensor.type_name != "F32":
            raise ModelUnsupportedError(f"{self.where}: tensor {name!r} is {tensor.type_name}; F32 is expected")
        return [float(value) for value in self.file.data(tensor).view("<f4")]


def spec_of(file: GgufFile, bos: int | None, eos: tuple[int, ...]) -> ModelSpec:
    """The spec of an opened file. Raises ModelFormatError or ModelUnsupportedError naming the file and the key."""
    metadata = ModelMetadata(file)
    config = _common(metadata) | {"bos_token_id": bos, "eos_token_id": list(eos)}
    _FAMILIES[metadata.architecture](metadata, config)
    try:
        spec = spec_from_hf(config)
    except ModelError as error:  # worded for config.json; the values came from the metadata
        raise type(error)(f"{file.path}: {str(error).removeprefix('config.json: ')}") from error
    if metadata.has_tensor(ROPE_FREQUENCIES):
        spec = _with_frequencies(spec, metadata)
    return replace(spec, extra=(("stored as", _census(file)),))


def _census(file: GgufFile) -> str:
    """How many tensors are of which type, most frequent first."""
    counts = Counter(tensor.type_name for tensor in file.tensors.values())
    return ", ".join(f"{count} x {name}" for name, count in counts.most_common())


def _common(metadata: ModelMetadata) -> Config:
    embedding = metadata.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFormatError(f"{metadata.where}: tensor 'token_embd.weight' is missing; the file is incomplete")
    heads = metadata.need("attention.head_count")
    config: Config = {
        # The rows there are: the metadata may count fewer where a converter padded the vocabulary.
        "vocab_size": embedding.shape[0],
        "hidden_size": metadata.need("embedding_length"),
        "num_hidden_layers": metadata.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("attention.head_count_kv", heads),
        "intermediate_size": metadata.need("feed_forward_length"),
        "max_position_embeddings": metadata.need("context_length"),
        "tie_word_embeddings": not metadata.has_tensor("output.weight"),
        "rope_theta": metadata.get("rope.freq_base", 10000.0),
        "dtype": _dtype(metadata.file),
    }
    if metadata.get("attention.causal", True) is not True:
        raise ModelUnsupportedError(f"{metadata.where}: {metadata.architecture}.attention.causal is false: an encoder")
    _add_head_size(metadata, config)
    _add_scaling(metadata, config)
    if (eps := metadata.get("attention.layer_norm_rms_epsilon")) is not None:
        config["rms_norm_eps"] = eps
    return config


def _add_head_size(metadata: ModelMetadata, config: Config) -> None:
    if not config["hidden_size"] or not config["num_attention_heads"]:
        return  # refused with the other keys
    size = metadata.get("attention.key_length") or config["hidden_size"] // config["num_attention_heads"]
    if metadata.get("attention.value_length", size) != size:
        raise ModelUnsupportedError(f"{metadata.where}: keys and values of different size are not run")
    config["head_dim"] = size
    rotated = metadata.get("rope.dimension_count", size)
    if rotated != size and size:
        if metadata.architecture == "llama":
            raise ModelUnsupportedError(f"{metadata.where}: llama.rope.dimension_count {rotated} of {size} is not run")
        config["partial_rotary_factor"] = (rotated + 0.5) / size  # half a dimension more: the reader rounds down


def _add_scaling(metadata: ModelMetadata, config: Config) -> None:
    kind = metadata.get("rope.scaling.type", "none")
    factor, original = metadata.get("rope.scaling.factor"), metadata.get("rope.scaling.original_context_length")
    strength = metadata.get("rope.scaling.attn_factor")
    if metadata.has_tensor(ROPE_LONG) or metadata.has_tensor(ROPE_SHORT):
        missing = [name for name in (ROPE_SHORT, ROPE_LONG) if not metadata.has_tensor(name)]
        if missing or original is None:
            lacking = missing[0] if missing else "rope.scaling.original_context_length"
            raise ModelFormatError(f"{metadata.where}: {lacking!r} is missing beside the other long-context factors")
        section: Config = {"rope_type": "longrope"}
        section |= {"short_factor": metadata.factors(ROPE_SHORT), "long_factor": metadata.factors(ROPE_LONG)}
        config["original_max_position_embeddings"] = original
    elif kind == "none":
        return
    elif kind in ("linear", "yarn"):
        section = {"rope_type": kind, "factor": factor}
        if original is not None and kind == "yarn":
            section["original_max_position_embeddings"] = original
    else:
        raise ModelUnsupportedError(f"{metadata.where}: rope.scaling.type {kind!r} is not one of none, linear, yarn")
    config["rope_scaling"] = section | ({} if strength is None else {"attention_factor": strength})


def _with_frequencies(spec: ModelSpec, metadata: ModelMetadata) -> ModelSpec:
    """Llama 3.1 and later: the file holds the divisors of the frequencies instead of the formula's parameters.

    "longrope" with the same divisors below and above the original length, and no attention factor, is exactly that.
    """
    rope = spec.ropes[0] if len(spec.ropes) == 1 else None
    divisors = tuple(metadata.factors(ROPE_FREQUENCIES))
    if rope is None or rope.kind != "default" or len(divisors) != rope.rotary_dim // 2:
        message = (
            f"{metadata.where}: tensor {ROPE_FREQUENCIES!r} ({len(divisors)} values) does not fit this model's rope"
        )
        raise ModelUnsupportedError(message)
    scaled = replace(rope, kind="longrope", short_factor=divisors, long_factor=divisors, attention_factor=1.0)
    return replace(spec, ropes=(replace(scaled, original_max_position=spec.max_position),))


def _dtype(file: GgufFile) -> str:
    """What the matrices want to run in: their own type, or bfloat16 once anything is quantised (fewer bits)."""
    types = frozenset(tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1)
    plain = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    if types <= plain.keys():
        return plain[min(types)] if len(types) == 1 else "float32"
    return "bfloat16"


def _llama(metadata: ModelMetadata, config: Config) -> None:
    config["attention_bias"] = metadata.has_tensor("blk.0.attn_q.bias")
    window = metadata.get("attention.sliding_window")
    if metadata.get("expert_count", 0):
        config["architectures"] = ["MixtralForCausalLM"]
        config["num_local_experts"] = metadata.need("expert_count")
        config["num_experts_per_tok"] = metadata.need("expert_used_count")
        config["sliding_window"] = window
    elif window:
        config |= {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    else:
        config["architectures"] = ["LlamaForCausalLM"]


def _qwen2(metadata: ModelMetadata, config: Config) -> None:
    _without_window(metadata)
    config["architectures"] = ["Qwen2ForCausalLM"]


def _qwen3(metadata: ModelMetadata, config: Config) -> None:
    _without_window(metadata)
    config["architectures"] = ["Qwen3ForCausalLM"]


def _qwen3_moe(metadata: ModelMetadata, config: Config) -> None:
    _without_window(metadata)
    config["architectures"] = ["Qwen3MoeForCausalLM"]
    config["num_experts"] = metadata.need("expert_count")
    config["num_experts_per_tok"] = metadata.need("expert_used_count")
    config["moe_intermediate_size"] = metadata.need("expert_feed_forward_length")
    config["norm_topk_prob"] = True  # every Qwen3 mixture; the file does not say


def _without_window(metadata: ModelMetadata) -> None:
    if metadata.get("attention.sliding_window"):
        raise ModelUnsupportedError(f"{metadata.where}: which layers {metadata.architecture} slides is not in the file")


def _phi3(metadata: ModelMetadata, config: Config) -> None:
    config |= {"architectures": ["Phi3ForCausalLM"], "sliding_window": metadata.get("attention.sliding_window") or None}


def _gemma2(metadata: ModelMetadata, config: Config) -> None:
    config["architectures"] = ["Gemma2ForCausalLM"]
    config["sliding_window"] = metadata.need("attention.sliding_window")
    config["attn_logit_softcapping"] = metadata.need("attn_logit_softcapping")
    config["final_logit_softcapping"] = metadata.need("final_logit_softcapping")
    _add_gemma_scale(config, large_layers=46)


def _gemma3(metadata: ModelMetadata, config: Config) -> None:
    config["architectures"] = ["Gemma3ForCausalLM"]
    config["sliding_window"] = metadata.need("attention.sliding_window")
    config["final_logit_softcapping"] = metadata.get("final_logit_softcapping")
    config["rope_theta"] = metadata.get("rope.freq_base", 1e6)
    config["rope_local_base_freq"] = metadata.get("rope.freq_base_swa", 1e4)
    _add_gemma_scale(config, large_layers=62)


def _add_gemma_scale(config: Config, large_layers: int) -> None:
    """The files leave out the softmax scale: llama.cpp too tells the 27B models, which differ, by their layer count."""
    size = config.get("head_dim")
    if config["num_hidden_layers"] == large_layers:
        size = config["hidden_size"] / max(config["num_attention_heads"], 1)
    config["query_pre_attn_scalar"] = size


def _gpt2(metadata: ModelMetadata, config: Config) -> None:
    config |= {
        "architectures": ["GPT2LMHeadModel"],
        "layer_norm_epsilon": metadata.need("attention.layer_norm_epsilon"),
    }
    config |= {"n_embd": config["hidden_size"], "n_head": config["num_attention_heads"]}
    config |= {"n_layer": config["num_hidden_layers"], "n_positions": config["max_position_embeddings"]}
    config["n_inner"] = config["intermediate_size"]


_FAMILIES: dict[str, Callable[[ModelMetadata, Config], None]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
}
