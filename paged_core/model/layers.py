"""The parts of a decoder layer in plain torch: norm, feed-forward, attention over paged keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch.nn import functional

from paged_core.errors import ModelUnsupportedError
from paged_core.model.gpu_fused import GpuFused
from paged_core.model.rope import rotate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from paged_core.api.attention import Attention, AttentionLayer
    from paged_core.api.model import ModelSpec
    from paged_core.model.store import WeightStore
    from paged_core.tracing import Trace


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of a ModelSpec.activation. Raises ModelUnsupportedError for a name that is not known."""
    match name:
        case "silu":
            return functional.silu
        case "gelu":
            return functional.gelu
        case "gelu_tanh":
            return _gelu_tanh
        case "relu":
            return functional.relu
    raise ModelUnsupportedError(f"activation {name!r} is not one of silu, gelu, gelu_tanh, relu")


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


class Norm:
    """RMSNorm or LayerNorm over the last axis, with the rounding order of the reference implementations.

    RMSNorm works in float32 and rounds before it multiplies by the weight; with `norm_in_float32` (Gemma) after.
    """

    def __init__(self, spec: ModelSpec, store: WeightStore, name: str) -> None:
        self.weight = store.take(f"{name}.weight")
        self._bias = store.take_if_any(f"{name}.bias")
        self.eps = spec.norm_eps
        self._is_rms = spec.norm == "rms"
        self._in_float32 = spec.norm_in_float32
        knows_order = not self._in_float32 or isinstance(store.fused, GpuFused)
        self._fused = store.fused if self._is_rms and knows_order else None

    @property
    def is_fused(self) -> bool:
        """Whether a native kernel computes it."""
        return self._fused is not None

    def add(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """x + delta [rows, size], which may take the place of `x`, and its norm."""
        if self._fused is not None and x.is_contiguous() and delta.is_contiguous():
            return x, self._fused.norm(x, delta, self.weight, self.eps)
        x = x + delta
        return x, self(x)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size], same dtype; heads [tokens, heads, size] may be normed in place."""
        if self._fused is not None and x.dim() == 2 and x.is_contiguous():
            return self._fused.norm(x, None, self.weight, self.eps)
        if self._fused is not None and x.dim() == 3 and x.stride()[1:] == (x.shape[2], 1):
            return self._fused.norm_heads(x, self.weight, self.eps)
        if not self._is_rms:
            return functional.layer_norm(x, self.weight.shape, self.weight, self._bias, self.eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self._in_float32:
            return (wide * self.weight).to(x.dtype)
        return self.weight * wide.to(x.dtype)


class FeedForward(Protocol):
    """What follows attention in a layer: dense or a mixture. `PARTS`: attributes worth timing, by what they do."""

    PARTS: ClassVar[Mapping[str, str]]

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        ...


class Mlp:
    """Dense feed-forward: down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate."""

    PARTS: ClassVar[Mapping[str, str]] = {"gated": "gate_up", "_up": "gate_up", "down": "down"}

    def __init__(self, spec: ModelSpec, store: WeightStore, name: str) -> None:
        self._is_gated = spec.gated_mlp
        is_silu = spec.gated_mlp and spec.activation == "silu"
        self.gated = store.gated_linear(f"{name}.gate_up") if is_silu else None  # the gate inside the product
        self._up = None if self.gated else store.linear(f"{name}.gate_up" if spec.gated_mlp else f"{name}.up")
        self.down = store.summed_linear(f"{name}.down")
        self._activation = activation(spec.activation)
        self._fused = store.fused if is_silu else None

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        if self._up is None:
            assert self.gated is not None
            return self.down(self.gated(x))
        inner = self._up(x)
        if self._fused is not None:
            return self.down(self._fused.gate(inner))
        if self._is_gated:
            gate, up = inner.chunk(2, dim=-1)
            return self.down(self._activation(gate) * up)
        return self.down(self._activation(inner))


class SelfAttention:
    """Projections, head norms and rotation around an attention backend, which holds the keys and values."""

    PARTS: ClassVar[Mapping[str, str]] = {"qkv": "qkv", "output": "o"}

    def __init__(self, spec: ModelSpec, store: WeightStore, name: str, layer: AttentionLayer, fused_rope: bool) -> None:
        self.layer = layer
        self.rotates = layer.rope >= 0 and not fused_rope
        self.qkv = store.linear(f"{name}.qkv")
        self.output = store.summed_linear(f"{name}.o")
        self.q_norm = Norm(spec, store, f"{name}.q_norm") if spec.qk_norm else None
        self.k_norm = Norm(spec, store, f"{name}.k_norm") if spec.qk_norm else None
        self.heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.head_dim = spec.head_dim

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of q, k and v [tokens, heads, head_dim] in [tokens, all heads * head_dim], strided over tokens."""
        heads = qkv.view(len(qkv), sum(self.heads), self.head_dim)
        q, k, v = torch.split(heads, list(self.heads), dim=1)
        return q, k, v

    def __call__(self, x: Tensor, step: LayerStep, kv: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; writes this step's keys and values into `kv`."""
        q, k, v = self.split(self.qkv(x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotates:
            cos, sin = step.ropes[self.layer.rope]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        step.attention.forward(self.layer, q, k, v, kv, step.plan, step.out)
        return self.output(step.out.view(len(x), -1))


class LayerStep:
    """What all layers share in one forward pass. `out` [tokens, heads, head_dim] is their common attention output."""

    __slots__ = ("attention", "out", "plan", "ropes")

    def __init__(self, attention: Attention, plan: Any, ropes: list[tuple[Tensor, Tensor]], out: Tensor) -> None:
        self.attention = attention
        self.plan = plan
        self.ropes = ropes
        self.out = out


class DecoderLayer:
    """Attention and feed-forward with residuals; norms before ("pre"), after ("post") or around ("sandwich")."""

    def __init__(
        self, spec: ModelSpec, store: WeightStore, name: str, attention: SelfAttention, feed_forward: FeedForward
    ) -> None:
        sandwich = spec.norm_placement == "sandwich"
        self.placement = spec.norm_placement
        self.attention = attention
        self.feed_forward = feed_forward
        self.attn_norm = Norm(spec, store, f"{name}.attn_norm")
        self.mlp_norm = Norm(spec, store, f"{name}.mlp_norm")
        self._attn_post_norm = Norm(spec, store, f"{name}.attn_post_norm") if sandwich else None
        self._mlp_post_norm = Norm(spec, store, f"{name}.mlp_post_norm") if sandwich else None

    def watch(self, trace: Trace) -> None:
        """Time the parts from now on."""
        trace.watch(self.attention, self.attention.PARTS)
        trace.watch(self.feed_forward, self.feed_forward.PARTS)

    def __call__(self, x: Tensor, step: LayerStep, kv: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        if self.placement == "post":
            x = self.attn_norm(x + self.attention(x, step, kv))
            return self.mlp_norm(x + self.feed_forward(x))
        attended = self.attention(self.attn_norm(x), step, kv)
        if self._attn_post_norm is not None:
            attended = self._attn_post_norm(attended)
        x, normed = self.mlp_norm.add(x, attended)
        fed = self.feed_forward(normed)
        if self._mlp_post_norm is not None:
            fed = self._mlp_post_norm(fed)
        return x + fed
