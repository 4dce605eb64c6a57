"""WeightStore: canonical tensors in, the decoder's parameters out, converted, and fused where one product can serve.

    layers.{i}.attn.qkv      rows of q, k, v
    layers.{i}.mlp.gate_up   rows of gate, up
    layers.{i}.moe.experts.{e}.gate_up   rows of gate, up

All other names stay. A fused parameter is allocated when its first part arrives and filled in place. Linear layers of
which there is but one kind (qkv, o, down) are made as soon as their parameters are there: the original of 16 bits goes
before the next layer's comes, and loading needs little memory beyond the model.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import torch

from paged_core.model.fused import fused_for
from paged_core.model.linear import Linear, Linears, PlainLinear, Product
from paged_core.model.parallel.linear import SummedLinear
from paged_core.model.weights import expected_shapes

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.model import ModelSpec
    from paged_core.model.parallel.collective import Collective
    from paged_core.model.place import Place

_QKV = re.compile(r"(layers\.\d+\.attn)\.([qkv])\.(weight|bias)")
_EARLY = re.compile(r"(layers\.\d+\.(?:attn\.(?:qkv|o)|mlp\.down))\.(?:weight|bias)")
_GATE_UP = re.compile(r"(layers\.\d+\.(?:mlp|moe\.experts\.\d+))\.(gate|up)\.(weight|bias)")


class WeightStore:
    """Parameters by name. Tensors that already have the right type, device and order are kept without a copy."""

    def __init__(self, spec: ModelSpec, place: Place, collective: Collective | None = None) -> None:
        """With a `collective`, `spec` describes the rank's part (`local_spec`), and the tensors are cut to it."""
        self.spec = spec
        self.collective = collective
        self._dtype, self._device = place.dtype, place.device
        self.linears = Linears(place)
        self.fused = fused_for(place.device, place.dtype)
        self._tensors: dict[str, Tensor] = {}
        self._awaited = Counter(filter(None, map(_early, expected_shapes(spec))))
        self._made: dict[str, Linear] = {}

    def put(self, name: str, tensor: Tensor) -> None:
        """Take in one canonical tensor of the right shape."""
        part = self._part(name)
        if part is not None:
            part.copy_(tensor)
        else:
            self._keep(name, tensor)
        early = _early(name)
        if early is not None:
            self._awaited[early] -= 1
            if not self._awaited[early]:
                self._made[early] = self._make(early)

    def _keep(self, name: str, tensor: Tensor) -> None:
        # Gemma multiplies norms in float32: its weights keep the digits that 1 + w has
        exact = self.spec.norm_in_float32 and name.endswith("norm.weight")
        dtype = torch.float32 if exact else self._dtype
        kept = tensor.to(self._device, dtype).contiguous()
        if self.collective is not None and kept.untyped_storage().nbytes() > kept.nbytes:
            kept = kept.clone()  # the part that was cut out shall not keep the whole
        self._tensors[name] = kept

    def take(self, name: str) -> Tensor:
        """Hand over a parameter that the spec has; the store lets go of it, so that repacking frees the original."""
        return self._tensors.pop(name)

    def take_if_any(self, name: str) -> Tensor | None:
        """Hand over a parameter that the spec may have."""
        return self._tensors.pop(name, None)

    def linear(self, name: str, *, exact: bool = False) -> Linear:
        """The linear layer of `name`.weight and, if there is one, `name`.bias. `exact`: never quantised."""
        return self._made.pop(name) if name in self._made else self._make(name, exact)

    def summed_linear(self, name: str) -> Product:
        """The same, where a rank has but some of the inputs: what the ranks compute is added up."""
        part = self.linear(name)
        return part if self.collective is None else SummedLinear(part, self.collective)

    def _make(self, name: str, exact: bool = False) -> Linear:
        make = PlainLinear if exact and self.linears.quantized else self.linears.make
        return make(self.take(f"{name}.weight"), self.take_if_any(f"{name}.bias"))

    def gated_linear(self, name: str) -> Linear | None:
        """The layer of `name`.weight, gate and up, that gives silu(gate) * up; None where there is no such path."""
        weight, bias = self._tensors[f"{name}.weight"], self._tensors.get(f"{name}.bias")
        made = self.linears.make_gated(weight, bias)
        if made is not None:
            self.take(f"{name}.weight")
            self.take_if_any(f"{name}.bias")
        return made

    def _part(self, name: str) -> Tensor | None:
        """The piece of a fused parameter that `name` fills, or None."""
        spec = self.spec
        if match := _QKV.fullmatch(name):
            q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
            begin, rows = {"q": (0, q), "k": (q, kv), "v": (q + kv, kv)}[match[2]]
            return self._rows(f"{match[1]}.qkv.{match[3]}", q + 2 * kv, begin, rows)
        if match := _GATE_UP.fullmatch(name):
            is_expert = ".moe." in name
            if not is_expert and not spec.gated_mlp:
                return None
            inner = spec.moe.intermediate_size if spec.moe is not None and is_expert else spec.intermediate_size
            begin = 0 if match[2] == "gate" else inner
            return self._rows(f"{match[1]}.gate_up.{match[3]}", 2 * inner, begin, inner)
        return None

    def _rows(self, fused: str, total: int, begin: int, rows: int) -> Tensor:
        if fused not in self._tensors:
            shape = (total, self.spec.hidden_size) if fused.endswith("weight") else (total,)
            self._tensors[fused] = torch.empty(shape, dtype=self._dtype, device=self._device)
        return self._tensors[fused][begin : begin + rows]


def _early(name: str) -> str | None:
    """The linear layer that a canonical tensor is a part of, if it is one that is made early."""
    fused = _QKV.sub(r"\1.qkv.\3", name)
    match = _EARLY.fullmatch(fused)
    return match[1] if match else None
