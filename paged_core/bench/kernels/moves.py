"""Copies and swaps of blocks, through the contract: all layers and pairs of a step in one call."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.bench.kernels.paged import empty_cache
from paged_core.bench.site import enough, repeated
from paged_core.bench.timing import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.bench.kernels.cases import Move
    from paged_core.bench.kernels.paged import Backend
    from paged_core.bench.site import Site
    from paged_core.bench.timing import Measurement, Timer
    from paged_core.plugins import Plugins

_POOLS = 2
"""How many times the moved blocks a swap's pools hold: blocks lie scattered on both sides."""


class Moves:
    """One plugin's backend and the pools of one `Move`. `num_bytes`: what a call moves, each byte once.

    `refused`: why the host's pool is not pinned, or "".
    """

    def __init__(self, plugins: Plugins, move: Move, asked: Backend, site: Site) -> None:
        need = asked.need(move.heads, site.kind)
        self._backend: Attention = plugins.create("attn", asked.plugin, need)
        self._move, self._site = move, site
        block_bytes = self._backend.layout(1).bytes_per_block
        self.num_bytes: int = block_bytes * move.blocks * move.layers
        # copies take turns over disjoint blocks, so that none is still in a cache of the machine
        turns = -(-site.rotation // (2 * self.num_bytes)) if move.direction == "copy" else 1
        self._num_blocks = _POOLS * move.blocks * turns
        self._pool_bytes: int = block_bytes * self._num_blocks * move.layers
        self.refused = ""

    @property
    def needed_bytes(self) -> int:
        """Memory of the pools."""
        return self._pool_bytes * (1 if self._move.direction == "copy" else 2)

    @torch.inference_mode()
    def read(self, rounds: int) -> Measurement:
        """Seconds a call. A swap is timed until its blocks have arrived."""
        if self._move.direction == "copy":
            pool = self._pool(self._site.device)
            return self._timed(self._copies(pool), rounds, self._site.timer)
        with self._host_pool() as host:
            return self._timed(self._swap(self._pool(self._site.device), host), rounds, self._site.idle_timer)

    def _timed(self, call: Callable[[], object], rounds: int, timer: Timer) -> Measurement:
        count = enough(measure(call, 1, clock=timer).median, self._site)
        return measure(repeated(call, count), rounds, warmups=0, clock=timer).each(count)

    def _pool(self, device: torch.device) -> list[Tensor]:
        layout = self._backend.layout(self._num_blocks)
        made = [empty_cache(layout.shape, getattr(torch, layout.dtype), device) for _ in range(self._move.layers)]
        for cache in made:
            cache.view(torch.uint8).zero_()
        return made

    @contextmanager
    def _host_pool(self) -> Iterator[list[Tensor]]:
        """In memory that the device reads by itself where there is such."""
        host, accelerator = self._pool(torch.device("cpu")), self._site.accelerator
        if accelerator is None:
            yield host
            return
        reasons = [accelerator.pin(cache) for cache in host]
        self.refused = next(filter(None, reasons), "")
        try:
            yield host
        finally:
            self._site.synchronize()
            for cache, reason in zip(host, reasons, strict=True):
                if not reason:
                    accelerator.unpin(cache)

    def _scattered(self, seed: int) -> NDArray[np.int64]:
        return np.random.default_rng(seed).permutation(self._num_blocks)

    def _copies(self, pool: list[Tensor]) -> Callable[[], object]:
        """Copies the next of the disjoint sets of pairs."""
        sets = self._scattered(0).reshape(-1, self._move.blocks, 2).tolist()
        turns = cycle([[BlockCopy(*pair) for pair in pairs] for pairs in sets])
        return lambda: self._backend.copy_blocks(pool, next(turns))

    def _swap(self, pool: list[Tensor], host: list[Tensor]) -> Callable[[], object]:
        num = self._move.blocks
        on_device, on_host = self._scattered(0)[:num].tolist(), self._scattered(1)[:num].tolist()
        if self._move.direction == "out":
            pairs = [SwapPair(*pair) for pair in zip(on_device, on_host, strict=True)]
            return lambda: self._backend.swap_blocks(pool, host, pairs)
        pairs = [SwapPair(*pair) for pair in zip(on_host, on_device, strict=True)]
        return lambda: self._backend.swap_blocks(host, pool, pairs)
