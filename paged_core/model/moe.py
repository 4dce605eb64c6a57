"""Mixture: a softmax router sends each token to its top-k experts and adds their outputs by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from paged_core.model.layers import activation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from paged_core.api.model import ModelSpec, MoeSpec
    from paged_core.model.store import WeightStore


class Mixture:
    """Sparse feed-forward. A token's experts are added in ascending order, so its result does not depend on neighbours.

    Listing the experts that were hit synchronises with the device once a layer. Ranks of a group have a part of every
    expert, choose the same ones, and add up once.
    """

    PARTS: ClassVar[Mapping[str, str]] = {"_route": "router"}

    def __init__(self, spec: ModelSpec, moe: MoeSpec, store: WeightStore, name: str) -> None:
        self._top_k = moe.num_experts_per_token
        self._normalizes = moe.normalize_top_k
        self._router = store.linear(f"{name}.router", exact=True)
        self._experts = [
            (store.linear(f"{name}.experts.{expert}.gate_up"), store.linear(f"{name}.experts.{expert}.down"))
            for expert in range(moe.num_experts)
        ]
        self._activation = activation(spec.activation)
        self._collective = store.collective

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        weights, chosen = self._route(x)
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():  # the sync point
            token, rank = (chosen == expert).nonzero(as_tuple=True)
            gate_up, down = self._experts[expert]
            gate, up = gate_up(x[token]).chunk(2, dim=-1)
            fed = down(self._activation(gate) * up)
            out.index_add_(0, token, (fed * weights[token, rank, None]).to(out.dtype))
        return out if self._collective is None else self._collective.all_reduce(out)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 and experts int64, both [tokens, top_k]."""
        odds = self._router(x).softmax(-1, dtype=torch.float32)
        weights, chosen = odds.topk(self._top_k, dim=-1)
        if self._normalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
