"""ZentorchInt8Linear: AMD's dynamic int8 product, which quantises bfloat16 rows inside the same call.

Where it serves it is level with the native path and coarser, for a row of inputs has one scale. The library is loaded
without importing the package, which would bring torch's compiler and 2.4 s with it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from paged_core.model.linear.int8 import quantize_rows
from paged_core.model.linear.onednn import lacks_onednn

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place

_TRIAL_INPUTS = 6144
_TOLERANCE = 0.1  # int8 itself costs 0.01


class ZentorchInt8Linear:
    """x @ weight.T + bias in int8, bfloat16 in and out."""

    name: ClassVar[str] = "zentorch_int8"

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        quantized, scales = quantize_rows(weight)
        self._weight = torch.ops.zentorch.zentorch_weight_prepack_for_dynamic_qlinear(quantized)
        self._scales = scales.squeeze(1)
        self._bias = bias

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Needs bfloat16, a CPU with VNNI, and zentorch built for this very torch."""
        if place.quantization != "int8":
            return "it quantises to int8"
        if missing := lacks_onednn(place.device.type):
            return missing
        if place.dtype != torch.bfloat16:
            return f"it computes in bfloat16, not {place.dtype}"
        if not torch.cpu._is_vnni_supported():
            return "the processor has no VNNI"
        return _lacks_library() or _lacks_exactness()

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        product: Tensor = torch.ops.zentorch.zentorch_dynamic_qlinear(
            x, self._weight, self._scales, self._bias, is_weight_prepacked=True
        )
        return product


@cache
def _lacks_exactness() -> str:
    """Why long rows come out wrong, or "": tried once. 2.13.0.2 gives noise beyond 2,048 inputs and 64 outputs."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, _TRIAL_INPUTS, generator=generator).bfloat16() for rows in (96, 2))
    exact = x.float() @ weight.float().T
    error = (ZentorchInt8Linear(weight)(x).float() - exact).norm() / exact.norm()
    version = importlib.metadata.version("zentorch")
    return "" if error < _TOLERANCE else f"zentorch {version} multiplies rows of {_TRIAL_INPUTS} inputs wrongly"


@cache
def _lacks_library() -> str:
    """Load the library once; why that is not possible, or ""."""
    package = importlib.util.find_spec("zentorch")
    if package is None or package.origin is None:
        return "zentorch is not installed (pip install 'paged-core[zen]')"
    version, wanted = importlib.metadata.version("zentorch"), torch.__version__.split("+")[0]
    if version.rsplit(".", 1)[0] != wanted:
        return f"zentorch {version} was built for another torch than {wanted}"
    try:
        library = Path(package.origin).with_name("libzentorch.so")
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError as error:
        return f"zentorch {version} does not load: {error}"
    return ""
