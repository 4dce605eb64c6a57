"""NativePairsLinear and NativeQuadsLinear: products of our own in bf16 and int8, by the processor's dot instructions.

At 1 to 64 rows 1.1 to 1.6 times oneDNN's packed bf16, level with it at more; int8 level with AMD's zentorch, from 1.5
times at one row to 0.9 at 256, and finer: inputs have a scale for each 128 or so instead of one a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from paged_core.model.linear.int8 import quantize_rows
from paged_core.model.memory import prefer_huge_pages
from paged_core.native.matrix import PANEL, PackedWeight, group_of, products_of_this_thread

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place

GATED_OUTPUTS = PANEL // 2  # of gate, and of up, lie together
_PIECE = 64 * PANEL  # rows packed at a time


class NativeLinear(ABC):
    """x @ weight.T + bias over a packed weight, bfloat16 in and out."""

    name: ClassVar[str]

    def __init__(self, weight: Tensor, bias: Tensor | None = None, is_gated: bool = False) -> None:
        """`is_gated`: the weight's rows are gate, then up, and the product is silu(gate) * up."""
        self._num_inputs = weight.shape[1]
        self.weight = self._pack(weight, bias, is_gated)

    @classmethod
    @abstractmethod
    def lacks(cls, place: Place) -> str:
        """Why this path cannot serve a model at `place`, or "" if it can."""

    @staticmethod
    @abstractmethod
    def _pack(weight: Tensor, bias: Tensor | None, is_gated: bool) -> PackedWeight:
        """Pad, quantise, put into the kernels' order."""

    @property
    def is_exact_fit(self) -> bool:
        """Whether rows go in as they are."""
        return self._num_inputs == self.weight.inputs

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], or [rows, out / 2] with a gate."""
        return products_of_this_thread().multiply(self._fitting(x), self.weight)

    def wide(self, x: Tensor, out: Tensor) -> Tensor:
        """The same numbers in float32, into `out` [rows, out], contiguous."""
        return products_of_this_thread().multiply(self._fitting(x), self.weight, out)

    def _fitting(self, x: Tensor) -> Tensor:
        missing = self.weight.inputs - x.shape[1]
        return functional.pad(x, (0, missing)) if missing else x.contiguous()


class NativePairsLinear(NativeLinear):
    """In bfloat16."""

    name: ClassVar[str] = "native_bf16"

    @staticmethod
    def _pack(weight: Tensor, bias: Tensor | None, is_gated: bool) -> PackedWeight:
        outputs, inputs = weight.shape[0], -(-weight.shape[1] // 2) * 2
        panel_bytes = inputs * PANEL * 2
        data = _room(outputs, panel_bytes)
        pairs = data.view(torch.int32).view(len(data), inputs // 2, PANEL)
        for first, rows in _pieces(weight, is_gated):
            whole = _whole(rows, inputs).view(torch.int32).view(-1, PANEL, inputs // 2)
            pairs[first : first + len(whole)] = whole.transpose(1, 2)
        return PackedWeight(data, panel_bytes, inputs, outputs, None, _interleaved(bias, is_gated), is_gated)

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Needs a CPU that multiplies pairs of bf16."""
        if place.quantization != "none":
            return "it does not quantise"
        return _lacks(place, "AVX512-BF16")


class NativeQuadsLinear(NativeLinear):
    """In int8: weights with a scale a row, inputs with a scale for each group of a row, exact sums within a group."""

    name: ClassVar[str] = "native_int8"

    @staticmethod
    def _pack(weight: Tensor, bias: Tensor | None, is_gated: bool) -> PackedWeight:
        outputs, inputs = weight.shape[0], -(-weight.shape[1] // 4) * 4
        group = group_of(inputs)
        groups = [(begin, min(begin + group, inputs)) for begin in range(0, inputs, group)]
        panel_bytes = len(groups) * PANEL * 4 + inputs * PANEL
        data = _room(outputs, panel_bytes)
        scales = torch.zeros(len(data) * PANEL)
        for first, rows in _pieces(weight, is_gated):
            quantized, row_scales = quantize_rows(rows)
            scales[first * PANEL : first * PANEL + len(rows)] = row_scales.squeeze(1)
            quantized = _whole(quantized, inputs)
            panels = data[first : first + len(quantized) // PANEL]
            for number, (begin, end) in enumerate(groups):
                _put_group(panels[:, number * PANEL * 4 + begin * PANEL :], quantized[:, begin:end])
        return PackedWeight(data, panel_bytes, inputs, outputs, scales, _interleaved(bias, is_gated), is_gated, group)

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Needs bfloat16 and a CPU with VNNI."""
        if place.quantization != "int8":
            return "it quantises to int8"
        return _lacks(place, "AVX512-VNNI")


def _put_group(target: Tensor, part: Tensor) -> None:
    """One group of the inputs of some panels: what inputs 128 too large add up to, negative, then quads of weights."""
    panels = part.view(len(target), PANEL, -1)
    excess = panels.sum(-1, dtype=torch.int32).mul_(-128)
    target[:, : PANEL * 4] = excess.view(torch.uint8)
    quads = panels.view(len(target), PANEL, -1, 4).transpose(1, 2).reshape(len(target), -1)
    target[:, PANEL * 4 : PANEL * 4 + quads.shape[1]] = quads.view(torch.uint8)


def _room(outputs: int, panel_bytes: int) -> Tensor:
    """Panels to be filled wholly, on large pages where there are any: 3 to 8 % faster from 6 rows on."""
    data = torch.empty(-(-outputs // PANEL), panel_bytes, dtype=torch.uint8)
    prefer_huge_pages(data)
    return data


def _whole(rows: Tensor, inputs: int) -> Tensor:
    """Rows padded with zeros to `inputs` and to whole panels; as they are if nothing is missing."""
    missing = (0, inputs - rows.shape[1], 0, -len(rows) % PANEL)
    return functional.pad(rows, missing) if any(missing) else rows.contiguous()


def _pieces(weight: Tensor, is_gated: bool) -> list[tuple[int, Tensor]]:
    """(first panel, rows) of a weight, a few at a time; gate and up interleaved by half panels."""
    if is_gated:
        weight = _interleaved(weight, True)  # type: ignore[assignment]
    return [(first // PANEL, weight[first : first + _PIECE]) for first in range(0, len(weight), _PIECE)]


def _interleaved(values: Tensor | None, is_gated: bool) -> Tensor | None:
    """Rows 0..n of gate, then of up, as 16 of gate, 16 of up, and so on."""
    if values is None or not is_gated:
        return values
    return values.view(2, -1, GATED_OUTPUTS, *values.shape[1:]).transpose(0, 1).reshape(values.shape)


def _lacks(place: Place, instructions: str) -> str:
    if place.device.type != "cpu":
        return f"it serves the CPU, not {place.device.type}"
    if place.dtype != torch.bfloat16:
        return f"it computes in bfloat16, not {place.dtype}"
    from paged_core.native.processor import has_pairs, has_quads

    serves = has_pairs() if instructions == "AVX512-BF16" else has_quads()
    return "" if serves else f"the processor has no {instructions}"
