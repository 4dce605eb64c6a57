"""Canonical weight names, their shapes, and the translation from Hugging Face checkpoints.

Linear weights are [out, in]. Names (i = layer, e = expert):

    embed.weight  embed_positions.weight  embed.project_in.weight  embed.project_out.weight
    layers.{i}.attn_norm.{weight,bias}    layers.{i}.attn_post_norm.weight
    layers.{i}.mlp_norm.{weight,bias}     layers.{i}.mlp_post_norm.weight
    layers.{i}.attn.{q,k,v,o}.{weight,bias}  layers.{i}.attn.{q_norm,k_norm}.weight
    layers.{i}.mlp.{gate,up,down}.{weight,bias}
    layers.{i}.moe.router.weight          layers.{i}.moe.experts.{e}.{gate,up,down}.weight
    norm.{weight,bias}  head.{weight,bias}

A tied head has no `head.weight`. Norm weights are the multiplier itself.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch

from paged_core.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from paged_core.api.model import ModelSpec

Shape = tuple[int, ...]
NamedTensors = list[tuple[str, "Tensor"]]

_SHOWN = 5  # names listed in an error before "and N more"

# What stands before the decoder's own names in the checkpoints of the supported families, longest first.
_PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.decoder.",
    "transformer.",
    "decoder.",
    "model.",
)

# Tensors that carry nothing the decoder needs. Everything else that is unknown is an error.
_IGNORED = (
    re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),  # recomputed from the config
    re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"),  # GPT-2's causal masks
    re.compile(r"model\.(vision_tower|multi_modal_projector)\..+"),  # the eyes of Gemma3ForConditionalGeneration
    re.compile(r"(vision_tower|multi_modal_projector)\..+"),
)

_TOP = {
    "embed_tokens": "embed",
    "wte": "embed",
    "embed_positions": "embed_positions",
    "wpe": "embed_positions",
    "project_in": "embed.project_in",
    "project_out": "embed.project_out",
    "norm": "norm",
    "ln_f": "norm",
    "final_layer_norm": "norm",
    "lm_head": "head",
}

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.o",
    "self_attn.q_norm": "attn.q_norm",
    "self_attn.k_norm": "attn.k_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "mlp.gate": "moe.router",
    "block_sparse_moe.gate": "moe.router",
    # OPT
    "self_attn.out_proj": "attn.o",
    "self_attn_layer_norm": "attn_norm",
    "final_layer_norm": "mlp_norm",
    "fc1": "mlp.up",
    "fc2": "mlp.down",
    # GPT-2
    "ln_1": "attn_norm",
    "ln_2": "mlp_norm",
    "attn.c_proj": "attn.o",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
}

# Gemma 2 and 3: the same name means something else when a layer has norms on both sides.
_SANDWICH = {
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}

_EXPERT = {
    "w1": "gate",
    "w2": "down",
    "w3": "up",
    "gate_proj": "gate",
    "down_proj": "down",
    "up_proj": "up",
}

# Conv1D of GPT-2 stores [in, out].
_TRANSPOSED = frozenset({"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"})
_FUSED_QKV = frozenset({"self_attn.qkv_proj", "attn.c_attn"})
_FUSED_GATE_UP = "mlp.gate_up_proj"
_UNIT_OFFSET_NORMS = frozenset({"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"})

_LAYER_NAME = re.compile(r"(?:layers|h)\.(\d+)\.(.+)")
_EXPERT_NAME = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_FUSED_EXPERTS_NAME = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(gate_up_proj|down_proj)")


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every tensor a model of this spec consists of, in the order of the forward pass, with its shape."""
    hidden = spec.hidden_size
    width = spec.embedding_projection or hidden
    shapes: dict[str, Shape] = {"embed.weight": (spec.vocab_size, width)}
    if spec.position == "learned":
        shapes["embed_positions.weight"] = (spec.max_position + spec.position_offset, hidden)
    if spec.embedding_projection:
        shapes["embed.project_in.weight"] = (hidden, width)
        shapes["embed.project_out.weight"] = (width, hidden)
    for layer in range(spec.num_layers):
        shapes.update(_layer_shapes(spec, layer))
    if spec.final_norm:
        shapes.update(_norm("norm", hidden, spec.norm_bias))
    if not spec.tie_embeddings:
        shapes["head.weight"] = (spec.vocab_size, width)
    if spec.head_bias:
        shapes["head.bias"] = (spec.vocab_size,)
    return shapes


def num_parameters(spec: ModelSpec) -> int:
    """Parameters of the model; a tied head counts once."""
    return sum(math.prod(shape) for shape in expected_shapes(spec).values())


def _layer_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    hidden = spec.hidden_size
    at = f"layers.{layer}."
    shapes = _norm(at + "attn_norm", hidden, spec.norm_bias)
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
        shapes.update(_linear(f"{at}attn.{part}", size, hidden, spec.qkv_bias))
    if spec.qk_norm:
        shapes[at + "attn.q_norm.weight"] = (spec.head_dim,)
        shapes[at + "attn.k_norm.weight"] = (spec.head_dim,)
    shapes.update(_linear(at + "attn.o", hidden, q_size, spec.output_bias))
    if spec.norm_placement == "sandwich":
        shapes[at + "attn_post_norm.weight"] = (hidden,)
    shapes.update(_norm(at + "mlp_norm", hidden, spec.norm_bias))
    if spec.moe is not None and spec.is_moe(layer):
        shapes[at + "moe.router.weight"] = (spec.moe.num_experts, hidden)
        for expert in range(spec.moe.num_experts):
            shapes.update(_gated(f"{at}moe.experts.{expert}.", hidden, spec.moe.intermediate_size))
    else:
        for part in ("gate", "up") if spec.gated_mlp else ("up",):
            shapes.update(_linear(f"{at}mlp.{part}", spec.intermediate_size, hidden, spec.mlp_bias))
        shapes.update(_linear(at + "mlp.down", hidden, spec.intermediate_size, spec.mlp_bias))
    if spec.norm_placement == "sandwich":
        shapes[at + "mlp_post_norm.weight"] = (hidden,)
    return shapes


def _norm(name: str, size: int, bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (size,)}
    if bias:
        shapes[f"{name}.bias"] = (size,)
    return shapes


def _linear(name: str, out: int, inner: int, bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (out, inner)}
    if bias:
        shapes[f"{name}.bias"] = (out,)
    return shapes


def _gated(at: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {f"{at}gate.weight": (inner, hidden), f"{at}up.weight": (inner, hidden), f"{at}down.weight": (hidden, inner)}


def translate_hf(spec: ModelSpec, name: str, tensor: Tensor) -> NamedTensors:
    """The canonical tensors that one tensor of a Hugging Face checkpoint holds: none, one, or the parts of a fused one.

    Views where possible; the dtype stays as stored, but for Gemma's norms (`1 + w` in float32, since bfloat16 would
    round the sum). Raises ModelFormatError naming a tensor that belongs to no supported family.
    """
    short = next((name[len(prefix) :] for prefix in _PREFIXES if name.startswith(prefix)), name)
    if any(pattern.fullmatch(candidate) for pattern in _IGNORED for candidate in (name, short)):
        return []
    if short == "lm_head.weight" and spec.tie_embeddings:
        return []
    match = _LAYER_NAME.fullmatch(short)
    translated = _translate_layer(spec, name, match, tensor) if match else _translate_top(short, tensor)
    if translated is None:
        raise ModelFormatError(
            f"tensor {name!r} {tuple(tensor.shape)} is not part of {spec.architecture} as this engine knows it; "
            "it belongs to another architecture or to an unmerged adapter: use the plain checkpoint"
        )
    if spec.architecture in _UNIT_OFFSET_NORMS:
        return [(key, value.float() + 1.0 if key.endswith("norm.weight") else value) for key, value in translated]
    return translated


def _translate_top(short: str, tensor: Tensor) -> NamedTensors | None:
    module, _, leaf = short.rpartition(".")
    if module not in _TOP or leaf not in ("weight", "bias"):
        return None
    return [(f"{_TOP[module]}.{leaf}", tensor)]


def _translate_layer(spec: ModelSpec, name: str, match: re.Match[str], tensor: Tensor) -> NamedTensors | None:
    at, rest = f"layers.{match[1]}.", match[2]
    if expert := _EXPERT_NAME.fullmatch(rest):
        part = _EXPERT.get(expert[2])
        return None if part is None else [(f"{at}moe.experts.{expert[1]}.{part}.weight", tensor)]
    if fused := _FUSED_EXPERTS_NAME.fullmatch(rest):
        return _split_experts(spec, name, at, fused[1], tensor)
    module, _, leaf = rest.rpartition(".")
    if leaf not in ("weight", "bias"):
        return None
    if module in _TRANSPOSED and leaf == "weight":
        if tensor.dim() != 2:
            raise ModelFormatError(f"tensor {name!r} has shape {tuple(tensor.shape)}; a matrix was expected")
        tensor = tensor.t()
    if module in _FUSED_QKV:
        kv_size = spec.num_kv_heads * spec.head_dim
        parts = _split(name, tensor, (spec.num_heads * spec.head_dim, kv_size, kv_size))
        return [(f"{at}attn.{part}.{leaf}", value) for part, value in zip("qkv", parts, strict=True)]
    if module == _FUSED_GATE_UP:
        gate, up = _split(name, tensor, (spec.intermediate_size, spec.intermediate_size))
        return [(f"{at}mlp.gate.{leaf}", gate), (f"{at}mlp.up.{leaf}", up)]
    table = {**_LAYER, **_SANDWICH} if spec.norm_placement == "sandwich" else _LAYER
    return [(f"{at}{table[module]}.{leaf}", tensor)] if module in table else None


def _split(name: str, tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Cut a fused tensor along its output axis."""
    if tensor.dim() == 0 or tensor.shape[0] != sum(sizes):
        raise ModelFormatError(
            f"fused tensor {name!r} has shape {tuple(tensor.shape)}; the config asks for {'+'.join(map(str, sizes))} "
            f"= {sum(sizes)} output rows: config.json and weights do not belong together"
        )
    return torch.split(tensor, list(sizes), dim=0)


def _split_experts(spec: ModelSpec, name: str, at: str, part: str, tensor: Tensor) -> NamedTensors | None:
    """Experts stacked on axis 0: gate_up_proj [experts, 2 * inner, hidden], down_proj [experts, hidden, inner]."""
    if spec.moe is None:
        return None
    if tensor.dim() != 3 or tensor.shape[0] != spec.moe.num_experts:
        raise ModelFormatError(
            f"fused tensor {name!r} has shape {tuple(tensor.shape)}; [{spec.moe.num_experts} experts, out, in] expected"
        )
    named: NamedTensors = []
    for expert, matrix in enumerate(tensor.unbind(0)):
        prefix = f"{at}moe.experts.{expert}."
        if part == "down_proj":
            named.append((prefix + "down.weight", matrix))
            continue
        gate, up = _split(name, matrix, (spec.moe.intermediate_size,) * 2)
        named += [(prefix + "gate.weight", gate), (prefix + "up.weight", up)]
    return named


class Checklist:
    """Ticks off a stream of canonical tensors against what the spec demands. Nothing uninitialised slips through."""

    def __init__(self, spec: ModelSpec) -> None:
        self._architecture = spec.architecture
        self._shapes = expected_shapes(spec)
        self._missing = dict.fromkeys(self._shapes)

    def admit(self, name: str, shape: Sequence[int]) -> None:
        """Raises ModelFormatError on a name the spec does not have, a wrong shape, or a second copy."""
        wanted = self._shapes.get(name)
        if wanted is None:
            raise ModelFormatError(
                f"tensor {name!r} {tuple(shape)} is not part of this {self._architecture}: "
                "the config describes a smaller or different model than the weights"
            )
        if tuple(shape) != wanted:
            raise ModelFormatError(
                f"tensor {name!r} has shape {tuple(shape)}, but the config asks for {wanted}: "
                "config and weights do not belong together"
            )
        if name not in self._missing:
            raise ModelFormatError(f"tensor {name!r} occurs twice in the checkpoint; remove the stale copy")
        del self._missing[name]

    def finish(self) -> None:
        """Raises ModelFormatError when something is missing: the first few names and the count."""
        if not self._missing:
            return
        names = list(self._missing)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ModelFormatError(
            f"{len(names)} of {len(self._shapes)} tensors of this {self._architecture} are missing: "
            f"{', '.join(names[:_SHOWN])}{more}; a shard is absent or the download is incomplete"
        )


def checked(spec: ModelSpec, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Pass a stream of canonical tensors through a `Checklist`; raises as it does, the missing ones at the end."""
    checklist = Checklist(spec)
    for name, tensor in weights:
        checklist.admit(name, tensor.shape)
        yield name, tensor
    checklist.finish()
