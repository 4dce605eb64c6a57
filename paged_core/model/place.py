"""Place: on what device and in what element type a model computes, and how its weights are quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Place:
    """`quantization`: none, or int8 for the weights of linear layers, whose inputs are then quantised row by row."""

    device: torch.device
    dtype: torch.dtype
    quantization: str = "none"
