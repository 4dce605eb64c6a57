"""Launch: a kernel with the constants that never change, ready to be given a grid and its arguments."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Triton runs kernels on the CPU in its interpreter: TRITON_INTERPRET=1 was set when they were defined."""


class Launch:
    """One kernel, bound. Arguments are passed in the kernel's order; what is None in it stays None.

    Floating-point contraction is asked for by name: what Triton takes when it is not told depends on its version.
    """

    def __init__(self, kernel: Any, constants: Mapping[str, object], warps: int, stages: int) -> None:
        self._kernel = kernel
        self._options = {**constants, "num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}

    def __call__(self, grid: tuple[int, ...], *arguments: object) -> None:
        """On torch's current stream; the host does not wait."""
        if INTERPRETED:
            self._interpret(grid, arguments)
        else:
            self._kernel[grid](*arguments, **self._options)

    def _interpret(self, grid: tuple[int, ...], arguments: tuple[object, ...]) -> None:
        """As a GPU would: NaN and infinities without warnings, and storages as long as address space is."""
        short = [_at_address(each) if isinstance(each, torch.Tensor) else each for each in arguments]
        with np.errstate(all="ignore"):
            self._kernel[grid](*short, **self._options)


def _at_address(tensor: torch.Tensor) -> torch.Tensor:
    """One element where `tensor` begins. The interpreter copies the storages of its arguments onto themselves after a
    launch; kernels go by addresses."""
    if not tensor.numel():  # it lies nowhere, and nothing in it is read
        return tensor.new_empty(1)
    memory = (ctypes.c_uint8 * tensor.element_size()).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)
