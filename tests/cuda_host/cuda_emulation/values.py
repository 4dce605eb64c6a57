"""Arguments of launches from Python's values."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def arguments(*values: Tensor | int | float | ctypes.Structure | ctypes._SimpleCData[Any]) -> list[Any]:
    """A tensor's address, c_int32 for an int, c_float for a float; what ctypes made stays."""
    return [_argument(value) for value in values]


def _argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_int32(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_void_p(value.data_ptr()) if hasattr(value, "data_ptr") else value
