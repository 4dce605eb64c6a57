"""Linear: what every path of a linear layer offers.

Laws of every path: a row's result depends on that row alone, bit for bit, whatever the number of rows (batch
invariance); the result has the input's dtype; the weight given is not kept if another form of it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place


class Product(Protocol):
    """Rows in, rows out."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        ...


class Linear(Product, Protocol):
    """x @ weight.T + bias; the weight's own form is the path's affair."""

    name: ClassVar[str]

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` [out, in] and `bias` [out] in the dtype of the model."""
        ...

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Why this path cannot serve a model at `place`, or "" if it can."""
        ...
