"""OneDnnInt8Linear: int8 weights with a scale a channel, inputs quantised row by row, products in exact integers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

import torch

from paged_core.model.linear.onednn import lacks_onednn

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place

MOST = 127
_ZERO = 128  # of the unsigned inputs: oneDNN has no fast product of signed ones without AMX
_TINY = 1e-12
_PIECE = 1 << 16  # elements: what is made of them on the way, in float32, stays in the second cache


def quantize_rows(values: Tensor, most: int = MOST) -> tuple[Tensor, Tensor]:
    """int8 [rows, columns] up to `most`, float32 scales [rows, 1]: value = int8 * scale, symmetric, nearest."""
    quantized = torch.empty(values.shape, dtype=torch.int8)
    scales = torch.empty((len(values), 1))
    step = max(1, _PIECE // values.shape[1])
    for first in range(0, len(values), step):
        part = slice(first, first + step)
        rounded, scales[part] = _rounded(values[part], most)
        quantized[part] = rounded
    return quantized, scales


def _rounded(values: Tensor, most: int = MOST) -> tuple[Tensor, Tensor]:
    wide = values.float()
    scales = wide.abs().amax(dim=-1, keepdim=True).clamp_min_(_TINY).div_(most)
    return (wide / scales).round_(), scales


class OneDnnInt8Linear:
    """x @ weight.T + bias in int8 on any x86 CPU; VNNI makes it fast and weights a bit finer, AVX2 is enough."""

    name: ClassVar[str] = "onednn_int8"

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        quantized, scales = quantize_rows(weight, _most_exact())
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
        product = _product(rounded.add_(_ZERO).to(torch.uint8), self._weight, self._scales, self._zero_points)
        product.mul_(scales)
        if self._bias is not None:
            product.add_(self._bias)
        return product.to(x.dtype)


def _product(x: Tensor, weight: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    """float32: (x - 128) times a packed int8 weight times its scales."""
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, _ZERO, weight, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


@cache
def _most_exact() -> int:
    """The largest weight whose products add up exactly here: 127, or 63 on a processor without VNNI.

    There oneDNN adds pairs of products in 16 bits, which saturate: 2 * 255 * 127 does not fit, 2 * 255 * 63 does.
    """
    inputs, outputs = 256, 64
    weight = torch.ops.onednn.qlinear_prepack(torch.full((outputs, inputs), MOST, dtype=torch.int8), None)
    x = torch.full((1, inputs), _ZERO + MOST, dtype=torch.uint8)
    product = _product(x, weight, torch.ones(outputs), torch.zeros(outputs, dtype=torch.int64))
    return MOST if bool((product == inputs * MOST * MOST).all()) else MOST // 2
