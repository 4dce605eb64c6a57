"""OneDnnInt8Linear: int8 weights with a scale a channel, inputs quantised row by row, products in exact integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from paged_core.model.linear.onednn import lacks_onednn

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place

MOST = 127
_ZERO = 128  # of the unsigned inputs: oneDNN has no fast product of signed ones without AMX
_TINY = 1e-12
_PIECE = 2048


def quantize_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [rows, columns] and float32 scales [rows, 1]: value = int8 * scale, symmetric, nearest."""
    quantized = torch.empty(values.shape, dtype=torch.int8)
    scales = torch.empty((len(values), 1))
    for first in range(0, len(values), _PIECE):  # a head of 49,152 x 576 at once would take 340 MB on the way
        part = slice(first, first + _PIECE)
        rounded, scales[part] = _rounded(values[part])
        quantized[part] = rounded
    return quantized, scales


def _rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    wide = values.float()
    scales = wide.abs().amax(dim=-1, keepdim=True).clamp_min_(_TINY).div_(MOST)
    return (wide / scales).round_(), scales


class OneDnnInt8Linear:
    """x @ weight.T + bias in int8 on any x86 CPU; VNNI makes it fast, AVX2 is enough."""

    name: ClassVar[str] = "onednn_int8"

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        quantized, scales = quantize_rows(weight)
        self._weight = torch.ops.onednn.qlinear_prepack(quantized, None)
        self._scales = scales.squeeze(1)
        self._zero_points = torch.zeros(len(weight), dtype=torch.int64)
        self._bias = bias

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Needs an x86 CPU."""
        return lacks_onednn(place.device.type) if place.quantization == "int8" else "it quantises to int8"

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]. A row that holds NaN gives NaN."""
        rounded, scales = _rounded(x)
        # the inputs' scale is one and the rows' own come afterwards: oneDNN knows none a row
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded.add_(_ZERO).to(torch.uint8),
            1.0,
            _ZERO,
            self._weight,
            self._scales,
            self._zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        product.mul_(scales)
        if self._bias is not None:
            product.add_(self._bias)
        return product.to(x.dtype)
