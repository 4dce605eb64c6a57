"""PlainLlama: the tiny Llama of `paged_core.testing.tiny` in plain torch, whole sequence by whole sequence.

No cache, no blocks, no batch, nothing of paged_core.model: float64 from the stored tensors to the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

CANONICAL = {
    "model.embed_tokens": "embed",
    "model.norm": "norm",
    "lm_head": "head",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.o",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def canonical_name(stored: str) -> str:
    """The name that `paged_core.model.weights` gives to a tensor of a Llama checkpoint."""
    module, _, leaf = stored.rpartition(".")
    if module in CANONICAL:
        return f"{CANONICAL[module]}.{leaf}"
    _, _, layer, rest = module.split(".", 3)
    return f"layers.{layer}.{CANONICAL[rest]}.{leaf}"


def stored_weights(folder: Path) -> dict[str, Tensor]:
    """Tensors of a folder's model.safetensors by canonical name, read by the safetensors package."""
    from safetensors.torch import load_file

    return {canonical_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}


@dataclass(frozen=True, slots=True)
class Continuation:
    """Greedy tokens, and the gap between best and second logit at each of them (law 15: below 1e-3 is a tie)."""

    tokens: list[int]
    gaps: list[float]


class PlainLlama:
    """Logits and greedy continuations of the model in `folder`; `config` is its config.json."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._weights = {name: tensor.double() for name, tensor in stored_weights(folder).items()}
        self._config = config
        half = torch.arange(0, config["head_dim"], 2, dtype=torch.float64) / config["head_dim"]
        self._frequencies = config["rope_theta"] ** -half

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits [tokens, vocab] after each token of one sequence."""
        x = self._weights["embed.weight"][list(tokens)]
        for layer in range(self._config["num_hidden_layers"]):
            at = f"layers.{layer}."
            x = x + self._attention(at + "attn.", self._norm(at + "attn_norm", x))
            x = x + self._feed_forward(at + "mlp.", self._norm(at + "mlp_norm", x))
        return self._norm("norm", x) @ self._weights["head.weight"].T

    def continue_greedily(self, prompt: Sequence[int], count: int) -> Continuation:
        """The `count` tokens that follow `prompt`, each the most probable one."""
        tokens = list(prompt)
        gaps = []
        for _ in range(count):
            best = self.logits(tokens)[-1].topk(2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
        return Continuation(tokens[len(prompt) :], gaps)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        epsilon: float = self._config["rms_norm_eps"]
        return x * torch.rsqrt(mean_square + epsilon) * self._weights[f"{name}.weight"]

    def _feed_forward(self, at: str, x: Tensor) -> Tensor:
        gate, up, down = (self._weights[f"{at}{part}.weight"] for part in ("gate", "up", "down"))
        inner: Tensor = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
        return inner @ down.T

    def _attention(self, at: str, x: Tensor) -> Tensor:
        length = len(x)
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        q, k, v = (
            (x @ self._weights[f"{at}{part}.weight"].T).view(length, count, -1).transpose(0, 1)
            for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )  # each [heads, tokens, head_dim]
        q, k = self._rotated(q), self._rotated(k)
        k, v = (part.repeat_interleave(heads // kv_heads, dim=0) for part in (k, v))
        scores = q @ k.transpose(1, 2) / self._config["head_dim"] ** 0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        mixed: Tensor = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
        return mixed @ self._weights[f"{at}o.weight"].T

    def _rotated(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
