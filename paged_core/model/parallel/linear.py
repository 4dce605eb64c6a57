"""SummedLinear: a linear layer whose inputs are spread over the ranks, so that what each computes is added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.linear import Linear
    from paged_core.model.parallel.collective import Collective


class SummedLinear:
    """x @ weight.T + bias, where a rank has some columns of the weight and as many of x; rank 0 has the bias.

    What a rank adds is rounded to the model's element type, as the product of any linear layer.
    """

    def __init__(self, part: Linear, collective: Collective) -> None:
        self.part, self._collective = part, collective

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, the rank's inputs] -> [rows, out], the same on every rank."""
        return self._collective.all_reduce(self.part(x))
