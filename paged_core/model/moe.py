"""Mixture: a softmax router sends each token to its top-k experts and adds their outputs by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from paged_core.model.layers import activation

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.model import ModelSpec, MoeSpec
    from paged_core.model.store import WeightStore


class Mixture:
    """Sparse feed-forward. A token's experts are added in ascending order, so its result does not depend on neighbours.

    Listing the experts that were hit synchronises with the device once a layer.
    """

    def __init__(self, spec: ModelSpec, moe: MoeSpec, store: WeightStore, name: str) -> None:
        self._top_k = moe.num_experts_per_token
        self._normalizes = moe.normalize_top_k
        self._router = store.get(f"{name}.router.weight")  # [experts, hidden]
        self._gate_up = store.get(f"{name}.gate_up")  # [experts, 2 * inner, hidden]
        self._down = store.get(f"{name}.down")  # [experts, hidden, inner]
        self._activation = activation(spec.activation)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        weights, chosen = self._route(x)
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():  # the sync point
            token, rank = (chosen == expert).nonzero(as_tuple=True)
            gate, up = functional.linear(x[token], self._gate_up[expert]).chunk(2, dim=-1)
            fed = functional.linear(self._activation(gate) * up, self._down[expert])
            out.index_add_(0, token, (fed * weights[token, rank, None]).to(out.dtype))
        return out

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 and experts int64, both [tokens, top_k]."""
        odds = functional.linear(x, self._router).softmax(-1, dtype=torch.float32)
        weights, chosen = odds.topk(self._top_k, dim=-1)
        if self._normalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
