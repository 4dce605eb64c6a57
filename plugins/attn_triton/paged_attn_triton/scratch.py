"""Scratch: memory of the backend that grows and never moves under work that was captured with it."""

from __future__ import annotations

import torch


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
