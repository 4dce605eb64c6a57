"""Rows of a cache of uint8: an 8-bit code an element, then step and minimum in float32.

    byte  0 .. n - 1  codes     n .. n + 3  step     n + 4 .. n + 7  minimum      element = minimum + step * code

Each row is coded from its own elements alone. A row with a NaN or an infinity is read as NaN throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

ROW_BYTES = 8
"""Of a row, besides its codes."""
LEVELS = 255
_LEAST_RANGE = 2.0**-100  # what spreads less is one number: its inverse would overflow


def encode(rows: Tensor) -> Tensor:
    """uint8 [..., n + ROW_BYTES] of rows [..., n] of any floating type."""
    x = rows.float()
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    spread = most - least
    is_flat = spread < _LEAST_RANGE
    per_unit = torch.full_like(spread, LEVELS) / spread  # a number over a tensor would multiply by its rounded inverse
    codes = ((x - least) * per_unit).round().masked_fill(is_flat, 0.0)
    codes = codes.nan_to_num(0.0)  # step or minimum is NaN then
    scaling = torch.cat([spread / LEVELS, least], dim=-1).contiguous()
    return torch.cat([codes.to(torch.uint8), scaling.view(torch.uint8)], dim=-1)


def decode(stored: Tensor) -> Tensor:
    """float32 [..., n] of uint8 [..., n + ROW_BYTES]."""
    codes, scaling = stored[..., :-ROW_BYTES], stored[..., -ROW_BYTES:]
    numbers = scaling.contiguous().view(torch.float32)
    return numbers[..., 1:] + numbers[..., :1] * codes.float()
