"""Linears: makes linear layers, all by the first path that serves the model here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from paged_core.errors import ConfigError
from paged_core.model.linear.int8 import OneDnnInt8Linear
from paged_core.model.linear.native import GATED_OUTPUTS, NativeLinear, NativePairsLinear, NativeQuadsLinear
from paged_core.model.linear.onednn import OneDnnLinear
from paged_core.model.linear.plain import PlainLinear
from paged_core.model.linear.zentorch import ZentorchInt8Linear
from paged_core.model.place import Place

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.executor import ExecutorNeed
    from paged_core.model.linear.path import Linear

log = logging.getLogger("paged_core.model")

PATHS: tuple[type[Linear], ...] = (
    NativeQuadsLinear,
    ZentorchInt8Linear,
    OneDnnInt8Linear,
    NativePairsLinear,
    OneDnnLinear,
    PlainLinear,
)
"""Best first: measured, from 1 to 256 rows, on every shape of SmolLM2 and of a 1.1B Llama."""

NATIVE: tuple[type[NativeLinear], ...] = (NativeQuadsLinear, NativePairsLinear)


class Linears:
    """The path for one model on one machine. `passed_over`: faster paths and why they do not serve."""

    def __init__(self, place: Place) -> None:
        """Raises ConfigError when no path serves `place`, with every reason."""
        self.quantized = place.quantization != "none"
        self.passed_over: dict[str, str] = {}
        for path in PATHS:
            missing = path.lacks(place)
            if not missing:
                self._path = path
                break
            self.passed_over[path.name] = missing
        else:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over.items())
            wanted = f"quantization {place.quantization} on {place.device.type}"
            raise ConfigError(f"no linear layer for {wanted}: {reasons}")
        self._native = next((native for native in NATIVE if native is self._path), None)
        log.info("linear layers: %s", self)

    def make(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A layer of `weight` [out, in] and `bias` [out]."""
        return self._path(weight, bias)

    def make_gated(self, weight: Tensor, bias: Tensor | None = None) -> Linear | None:
        """A layer of gate and up that gives silu(gate) * up, rounded as by three operators; None: the path has none."""
        if self._native is None or len(weight) % (2 * GATED_OUTPUTS):
            return None
        return self._native(weight, bias, is_gated=True)

    @property
    def are_native(self) -> bool:
        """Whether the layers are products of our own, which layers can be compiled from."""
        return self._native is not None

    def __str__(self) -> str:
        """The path, and the faster ones of the same precision that a package or processor would give."""
        lost = [f"{name}: {why}" for name, why in self.passed_over.items() if not why.startswith("it ")]
        return self._path.name + (f" ({'; '.join(lost)})" if lost else "")


def missing_linear(need: ExecutorNeed) -> list[str]:
    """Why no linear layer serves the need's quantization on its device, if none does; for executors' probes."""
    if need.quantization == "none":
        return []
    try:
        Linears(Place(torch.device(need.device), getattr(torch, need.dtype), need.quantization))
    except ConfigError as error:
        return [str(error)]
    return []
