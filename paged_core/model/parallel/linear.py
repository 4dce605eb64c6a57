"""SummedLinear: a linear layer whose inputs are spread over the ranks, so that what each computes is added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paged_core.model.linear.native import NativeLinear

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.linear import Linear
    from paged_core.model.parallel.collective import Collective


class SummedLinear:
    """x @ weight.T + bias, where a rank has some columns of the weight and as many of x; rank 0 has the bias.

    Native products are added up as they are, in float32, and rounded once, as one process rounds them.
    """

    def __init__(self, part: Linear, collective: Collective) -> None:
        self._part, self._collective = part, collective
        self._wide = part if isinstance(part, NativeLinear) else None

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, the rank's inputs] -> [rows, out], the same on every rank."""
        if self._wide is None:
            return self._collective.all_reduce(self._part(x))
        product = self._wide.wide(x, torch.empty((len(x), self._wide.weight.outputs)))
        return self._collective.all_reduce(product).to(x.dtype)
