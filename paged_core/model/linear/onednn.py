"""OneDnnLinear: the weight is packed once for oneDNN, in the model's own element type."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.place import Place

# The row count oneDNN tunes the packed order for. 32 is best or near best from 1 to 512 rows; without a hint or with 1
# the order suits only few rows.
TYPICAL_ROWS = 32
_TRIAL_RESULTS = 1 << 18  # another order shows in one of some ten thousand results of long rows


class OneDnnLinear:
    """x @ weight.T + bias with a packed weight; the plain copy is let go of.

    Measured on two Zen 4 cores, [3072, 576] in float32 takes 160 instead of 710 us for 1 row and 190 instead of 1170 us
    for 8; in bfloat16 92 instead of 146 us for 1 row.
    """

    name: ClassVar[str] = "onednn"

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        self._bias = bias
        self._pads = _differs_alone(weight.shape[0], weight.shape[1], weight.dtype)

    @classmethod
    def lacks(cls, place: Place) -> str:
        """Needs an x86 CPU that computes in the dtype natively."""
        if place.quantization != "none":
            return "it does not quantise"
        if missing := lacks_onednn(place.device.type):
            return missing
        if place.dtype == torch.bfloat16:
            native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
            return "" if native else "the processor has no bfloat16 products"
        return "" if place.dtype == torch.float32 else f"it computes in float32 and bfloat16, not {place.dtype}"

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        if self._pads and x.shape[0] == 1:
            return _product(x.expand(2, -1).contiguous(), self._weight, self._bias)[:1]
        return _product(x, self._weight, self._bias)


def lacks_onednn(device: str) -> str:
    """Why oneDNN does not serve tensors of `device` here, or ""."""
    if device != "cpu":
        return f"it serves the CPU, not {device}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch was built without oneDNN"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "the processor has no AVX2"
    return ""


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@lru_cache(maxsize=256)
def _differs_alone(num_out: int, num_in: int, dtype: torch.dtype) -> bool:
    """Whether oneDNN adds up a single row in another order than one among several, which it does for some shapes.

    Such a layer computes a lone row twice: about 2 % of its time, for results that do not depend on neighbours.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(min(num_out, 4096), num_in, generator=generator).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    x = torch.randn(min(max(64, _TRIAL_RESULTS // len(weight)), 4096), num_in, generator=generator).to(dtype)
    together = _product(x, packed, None)
    alone = torch.cat([_product(x[i : i + 1], packed, None) for i in range(len(x))])
    return not torch.equal(together, alone)
