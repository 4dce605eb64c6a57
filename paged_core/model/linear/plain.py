"""PlainLinear: torch's own product, on any device in any element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place


class PlainLinear:
    """x @ weight.T + bias by torch."""

    name: ClassVar[str] = "torch"

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Serves everything that is not quantised."""
        return "" if place.quantization == "none" else "it does not quantise"

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        return functional.linear(x, self._weight, self._bias)
