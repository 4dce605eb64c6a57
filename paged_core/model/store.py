"""WeightStore: canonical tensors in, the decoder's parameters out, converted, and fused where one product can serve.

    layers.{i}.attn.qkv      rows of q, k, v
    layers.{i}.mlp.gate_up   rows of gate, up
    layers.{i}.moe.gate_up   [experts, 2 * inner, hidden]
    layers.{i}.moe.down      [experts, hidden, inner]

All other names stay. A fused parameter is allocated when its first part arrives and filled in place, so that loading
needs one tensor's worth of memory beyond the model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.model import ModelSpec

_QKV = re.compile(r"(layers\.\d+\.attn)\.([qkv])\.(weight|bias)")
_GATE_UP = re.compile(r"(layers\.\d+\.mlp)\.(gate|up)\.(weight|bias)")
_EXPERT = re.compile(r"(layers\.\d+\.moe)\.experts\.(\d+)\.(gate|up|down)\.weight")


class WeightStore:
    """Parameters by name. Tensors that already have the right type, device and order are kept without a copy."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._tensors: dict[str, Tensor] = {}

    def put(self, name: str, tensor: Tensor) -> None:
        """Take in one canonical tensor of the right shape."""
        part = self._part(name)
        if part is not None:
            part.copy_(tensor)
            return
        # Gemma multiplies norms in float32: its weights keep the digits that 1 + w has
        exact = self._spec.norm_in_float32 and name.endswith("norm.weight")
        dtype = torch.float32 if exact else self._dtype
        self._tensors[name] = tensor.to(self._device, dtype).contiguous()

    def get(self, name: str) -> Tensor:
        """A parameter that the spec has."""
        return self._tensors[name]

    def find(self, name: str) -> Tensor | None:
        """A parameter that the spec may have."""
        return self._tensors.get(name)

    def _part(self, name: str) -> Tensor | None:
        """The piece of a fused parameter that `name` fills, or None."""
        spec = self._spec
        if match := _QKV.fullmatch(name):
            q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
            begin, rows = {"q": (0, q), "k": (q, kv), "v": (q + kv, kv)}[match[2]]
            return self._rows(f"{match[1]}.qkv.{match[3]}", q + 2 * kv, begin, rows)
        if spec.gated_mlp and (match := _GATE_UP.fullmatch(name)):
            inner = spec.intermediate_size
            begin = 0 if match[2] == "gate" else inner
            return self._rows(f"{match[1]}.gate_up.{match[3]}", 2 * inner, begin, inner)
        if spec.moe is not None and (match := _EXPERT.fullmatch(name)):
            experts, inner, hidden = spec.moe.num_experts, spec.moe.intermediate_size, spec.hidden_size
            if match[3] == "down":
                return self._fused(f"{match[1]}.down", (experts, hidden, inner))[int(match[2])]
            begin = 0 if match[3] == "gate" else inner
            stacked = self._fused(f"{match[1]}.gate_up", (experts, 2 * inner, hidden))
            return stacked[int(match[2]), begin : begin + inner]
        return None

    def _rows(self, name: str, total: int, begin: int, rows: int) -> Tensor:
        shape = (total, self._spec.hidden_size) if name.endswith("weight") else (total,)
        return self._fused(name, shape)[begin : begin + rows]

    def _fused(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = torch.empty(shape, dtype=self._dtype, device=self._device)
        return self._tensors[name]
