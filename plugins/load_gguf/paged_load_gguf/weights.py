"""GGUF tensors under their canonical names, dequantised, with the rows of llama's Q and K back in half-split order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_core.errors import ModelFormatError, ModelUnsupportedError
from paged_load_gguf.architecture import ROPE_TENSORS
from paged_load_gguf.dequantize import QUANTIZED, STORED_AS_IS, Scratch, dequantize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from paged_core.api.model import ModelSpec
    from paged_load_gguf.gguf_file import GgufFile, TensorInfo

    NamedTensors = list[tuple[str, Tensor]]

_TOP = {"token_embd": "embed", "position_embd": "embed_positions", "output_norm": "norm", "output": "head"}
_LAYER = {
    "attn_norm": "attn_norm",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.o",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
    "post_ffw_norm": "mlp_post_norm",
    "ffn_gate_inp": "moe.router",
}
_EXPERTS = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_VIEWS: dict[str, tuple[Any, torch.dtype]] = {
    "F32": (np.float32, torch.float32),
    "F16": (np.float16, torch.float16),
    "BF16": (np.int16, torch.bfloat16),
}


def canonical_weights(file: GgufFile, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """Stream (canonical name, tensor): F32, F16 and BF16 as stored, viewing the file; quantised types as float32.

    Raises ModelUnsupportedError naming tensor and type before the first one is read, ModelFormatError on a tensor that
    belongs to no supported model.
    """
    for tensor in file.tensors.values():
        if tensor.type_name not in QUANTIZED | STORED_AS_IS:
            known = ", ".join(sorted(QUANTIZED | STORED_AS_IS))
            message = f"{file.path}: tensor {tensor.name!r} is of type {tensor.type_name}; {known} are read"
            raise ModelUnsupportedError(message)
    translator = _Translator(spec, file.metadata.get("general.architecture", ""), str(file.path))
    scratch = Scratch()
    for tensor in file.tensors.values():
        if tensor.name not in ROPE_TENSORS:
            yield from translator.translate(tensor.name, load(file, tensor, scratch))


def load(file: GgufFile, tensor: TensorInfo, scratch: Scratch | None = None) -> Tensor:
    """The values of one tensor, [out, in] for a linear one; dequantised ones in an array of `scratch` if it can be."""
    data = file.data(tensor)
    if tensor.type_name in QUANTIZED:
        values = torch.from_numpy(dequantize(data, tensor.type_name, scratch)).view(tensor.shape)
        file.release(tensor)
        return values
    numpy_type, torch_type = _VIEWS[tensor.type_name]
    return torch.from_numpy(data.view(numpy_type)).view(torch_type).view(tensor.shape)


class _Translator:
    """Names and layouts of one architecture."""

    def __init__(self, spec: ModelSpec, architecture: str, where: str) -> None:
        self.spec = spec
        self.interleaved = architecture == "llama"
        self.fused_gate_up = architecture == "phi3"
        self.where = where

    def translate(self, name: str, tensor: Tensor) -> NamedTensors:
        match = _NAME.fullmatch(name)
        if match is None:
            raise self._unknown(name, tensor)
        layer, module, leaf = match.groups()
        if layer is None:
            if module not in _TOP:
                raise self._unknown(name, tensor)
            return [(f"{_TOP[module]}.{leaf}", tensor)]
        at = f"layers.{layer}."
        if module in _EXPERTS:
            return [(f"{at}moe.experts.{e}.{_EXPERTS[module]}.{leaf}", matrix) for e, matrix in enumerate(tensor)]
        if module == "attn_qkv":
            sizes = (self.spec.num_heads, self.spec.num_kv_heads, self.spec.num_kv_heads)
            parts = self._split(name, tensor, [heads * self.spec.head_dim for heads in sizes])
            return [(f"{at}attn.{part}.{leaf}", value) for part, value in zip("qkv", parts, strict=True)]
        if module == "ffn_up" and self.fused_gate_up:
            gate, up = self._split(name, tensor, [self.spec.intermediate_size] * 2)
            return [(f"{at}mlp.gate.{leaf}", gate), (f"{at}mlp.up.{leaf}", up)]
        if module not in _LAYER:
            raise self._unknown(name, tensor)
        if self.interleaved and module in ("attn_q", "attn_k"):
            tensor = self._half_split(name, tensor)
        return [(f"{at}{_LAYER[module]}.{leaf}", tensor)]

    def _half_split(self, name: str, tensor: Tensor) -> Tensor:
        """Rows of each head from (0, h, 1, h+1, ...), h = head_dim / 2, to (0, 1, ..., h, h+1, ...)."""
        head_dim = self.spec.head_dim
        if tensor.shape[0] % head_dim:
            raise ModelFormatError(f"{self.where}: tensor {name!r} has {tensor.shape[0]} rows for heads of {head_dim}")
        return tensor.view(-1, head_dim // 2, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    def _split(self, name: str, tensor: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        if tensor.shape[0] != sum(sizes):
            message = f"{self.where}: tensor {name!r} has {tensor.shape[0]} rows; {sum(sizes)} are expected"
            raise ModelFormatError(message)
        return torch.split(tensor, sizes)

    def _unknown(self, name: str, tensor: Tensor) -> ModelFormatError:
        shape = tuple(tensor.shape)
        return ModelFormatError(f"{self.where}: tensor {name!r} {shape} is not part of {self.spec.architecture}")
