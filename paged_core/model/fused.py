"""What lies between the products of a decoder layer, each in one pass over memory: residual with RMSNorm, gated SiLU.

Native kernels for float32 and bfloat16 on a CPU, with the rounding order of the plain operators in
`paged_core.model.layers`. A row's sum has one fixed order whatever the number of rows or threads (batch invariance).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_core.model.gpu_fused import GpuFused, gpu_fused_for
from paged_core.native.team import Team, native_function

if TYPE_CHECKING:
    from torch import Tensor

ELEMENTS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.bfloat16: np.uint16}
SMALL_WORK = 1 << 16  # elements below which one thread is faster than waking a second
_ITEM = 1 << 14  # elements a claimed item has about


class Fused:
    """Both kernels for one dtype. Used by one thread at a time."""

    def __init__(self, dtype: torch.dtype, team: Team) -> None:
        self._dtype = dtype
        self._team = team
        # the compiled objects own the machine code: keep them as long as their addresses
        self._compiled = _compiled(dtype)
        self._norm, self._gate = (native_function(compiled.address) for compiled in self._compiled)
        self._counter = np.zeros(1, dtype=np.int64)
        self._eps = np.zeros(1, dtype=np.float32)
        self._parameters = np.zeros(11, dtype=np.int64)
        self._parameters[:2] = self._counter.ctypes.data, self._eps.ctypes.data
        self._address = int(self._parameters.ctypes.data)

    @property
    def norm_address(self) -> int:
        """The native function behind `norm`, for callers that run several at once."""
        return int(self._compiled[0].address)

    def norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm of `x` [rows, size] times `weight` [size]; `delta` [rows, size] is first added to `x`, in place."""
        rows, size = x.shape
        out = torch.empty_like(x)
        self._eps[0] = eps
        pointers = (x.data_ptr(), 0 if delta is None else delta.data_ptr(), weight.data_ptr(), out.data_ptr())
        self._run(self._norm, pointers, rows, size, (1, size))
        return out

    def norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm of every head of `x` [tokens, heads, size] times `weight` [size], in place; tokens may be strided."""
        tokens, heads, size = x.shape
        self._eps[0] = eps
        pointers = (x.data_ptr(), 0, weight.data_ptr(), x.data_ptr())
        self._run(self._norm, pointers, tokens * heads, size, (heads, x.stride(0)))
        return x

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of `gate_up` [rows, 2 * size]: [rows, size]."""
        rows, double = gate_up.shape
        out = torch.empty((rows, double // 2), dtype=gate_up.dtype)
        self._run(self._gate, (gate_up.data_ptr(), 0, 0, out.data_ptr()), rows, double // 2)
        return out

    def _run(
        self, function: Any, pointers: tuple[int, int, int, int], rows: int, size: int, layout: tuple[int, int] = (1, 0)
    ) -> None:
        self._counter[0] = 0
        self._parameters[2:] = *pointers, rows, size, max(1, _ITEM // size), *layout
        self._team.run(function, self._address, 1 if rows * size < SMALL_WORK else self._team.num_threads)


def fused_for(device: torch.device, dtype: torch.dtype) -> Fused | GpuFused | None:
    """Kernels for a model at this place, or None where the plain operators serve it."""
    if device.type == "cuda":
        return gpu_fused_for(dtype)
    if device.type != "cpu" or dtype not in ELEMENTS:
        return None
    return Fused(dtype, Team(torch.get_num_threads()))


@cache
def _compiled(dtype: torch.dtype) -> tuple[Any, Any]:
    from paged_core.model import fused_kernels
    from paged_core.native.compile import compile_native, source_digest

    digest = source_digest([Path(fused_kernels.__file__)])
    element = ELEMENTS[dtype]
    return (
        compile_native(fused_kernels.norm_function(element, digest)),
        compile_native(fused_kernels.gate_function(element, digest)),
    )
