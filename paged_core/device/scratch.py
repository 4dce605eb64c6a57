"""Memory of a backend beside its caches: scratch that work captured in graphs may keep, and addresses of pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.device.upload import uploaded

if TYPE_CHECKING:
    from collections.abc import Sequence

_KNOWN_POOLS = 16  # sets of tensors whose addresses are kept on the device


class Scratch:
    """Flat memory of one dtype. A grown one is new; old ones are kept, because captured work may still use them."""

    def __init__(self, dtype: torch.dtype, device: torch.device, num_elements: int = 0) -> None:
        self._dtype = dtype
        self._device = device
        self._memory = torch.empty(num_elements, dtype=dtype, device=device)
        self._outgrown: list[torch.Tensor] = []

    def take(self, num_elements: int) -> torch.Tensor:
        """At least that many elements, the same memory as long as it suffices. Grows by doubling."""
        if num_elements > len(self._memory):
            self._outgrown.append(self._memory)
            size = max(num_elements, 2 * len(self._memory))
            self._memory = torch.empty(size, dtype=self._dtype, device=self._device)
        return self._memory


class Addresses:
    """Where the tensors of a pool begin, as an array on the device; the last few pools' are kept there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """int64 [tensors]; the host does not wait."""
        key = tuple(tensor.data_ptr() for tensor in tensors)
        known = self._known.get(key)
        if known is None:
            if len(self._known) == _KNOWN_POOLS:
                self._known.clear()
            known = self._known[key] = uploaded(np.array(key, dtype=np.int64), self._device)
        return known
