"""Board: shared memory on which ranks of one machine lay what they add up. What gloo needs hundreds of microseconds of
processor time for, sockets and threads, takes tens here.

    | counters, a cache line a rank | slot of rank 0 | slot of rank 1 | .. | the same slots again |

Meeting number m uses the slots of its parity. A rank writes its slot, then m into its counter; whoever reads waits
until all counters are m. Nobody writes for meeting m before all counters are m - 1: whoever has written that is done
with reading what lies in the slots of m - 2, which are the same ones.

Stores are seen in the order in which they were made, which x86 promises and others do not: `why_not` says so there.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.errors import EngineDeadError

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.model.parallel.shard import Shard

SLOT_BYTES = 1 << 20
"""What is larger is added piece by piece."""
_LINE = 64
_SPINS = 300
_YIELDS = 20
_NAP_S = 50e-6


def why_not() -> str:
    """Why ranks cannot share a board here, or ""."""
    if not hasattr(os, "memfd_create"):
        return "this system has no nameless shared memory"
    machine = platform.machine().lower()
    return "" if machine in ("x86_64", "amd64") else f"the order of stores is not kept on {machine}"


def make_board(size: int) -> int:
    """A descriptor of a board for `size` ranks. It has no name and is gone with the last who holds it."""
    descriptor = os.memfd_create("paged-core-board", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _num_bytes(size))
    return descriptor


def _num_bytes(size: int) -> int:
    return size * (_LINE + 2 * SLOT_BYTES)


class BoardCollective:
    """A `Collective` over a board. Adds up in the order of ranks, in float32, and rounds once, as `TorchCollective`."""

    def __init__(self, descriptor: int, shard: Shard, timeout_s: float) -> None:
        """Takes the descriptor. Nobody waits longer than `timeout_s` for another rank."""
        self._shard, self._timeout_s = shard, timeout_s
        self._memory = torch.frombuffer(mmap.mmap(descriptor, _num_bytes(shard.size)), dtype=torch.uint8)
        os.close(descriptor)
        counters, slots = self._memory[: shard.size * _LINE], self._memory[shard.size * _LINE :]
        self._counters = counters.numpy().view(np.int64)[:: _LINE // 8]
        self._slots = slots.view(2, shard.size, SLOT_BYTES)
        self._number = 0  # of the last meeting
        cores = len(os.sched_getaffinity(0))
        self._spins = _SPINS if shard.size <= cores else 0

    @property
    def rank(self) -> int:
        """From 0."""
        return self._shard.rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._shard.size

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up every rank's `x`, in place; returns it. All ranks get the same bits."""
        flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
        for begin in range(0, len(flat), most := SLOT_BYTES // x.element_size()):
            piece = flat[begin : begin + most]
            first, *others = self._met(piece)
            total = first.float()
            for other in others:
                total = total.add_(other) if total is not first else total + other
            piece.copy_(total)
        return x if x.is_contiguous() else x.copy_(flat.view(x.shape))

    def gather_logits(self, local: Tensor) -> Tensor | None:
        """Every rank's `local` [rows, tokens] side by side on rank 0; None on the others."""
        local = local.contiguous()
        rows, width = local.shape
        whole = local.new_empty(rows, self.size, width) if self.rank == 0 else None
        for begin in range(0, rows, most := max(1, SLOT_BYTES // (width * local.element_size()))):
            part = local[begin : begin + most]
            pieces = self._met(part.view(-1), reads=whole is not None)
            if whole is not None:
                for rank, piece in enumerate(pieces):
                    whole[begin : begin + most, rank] = piece.view(part.shape)
        return None if whole is None else whole.view(rows, self.size * width)

    def _met(self, piece: Tensor, reads: bool = True) -> list[Tensor]:
        """Lay `piece` down; what all ranks have laid down, in their order, good until the next meeting's end."""
        self._wait_for(self._number)
        self._number += 1
        num_bytes = piece.numel() * piece.element_size()
        slots = self._slots[self._number % 2, :, :num_bytes].view(piece.dtype)
        slots[self.rank].copy_(piece)
        self._counters[self.rank] = self._number
        if not reads:
            return []
        self._wait_for(self._number)
        return list(slots.unbind())

    def _wait_for(self, number: int) -> None:
        """Until all counters have reached `number`: first at once, then letting others run, then in naps."""
        counters, turns = self._counters, 0
        while counters.min() < number:
            turns += 1
            if turns <= self._spins:
                continue
            if turns <= self._spins + _YIELDS:
                os.sched_yield()
                continue
            if turns == self._spins + _YIELDS + 1:
                deadline = time.monotonic() + self._timeout_s
            time.sleep(_NAP_S)
            if time.monotonic() > deadline:
                late = ", ".join(str(rank) for rank in range(self.size) if counters[rank] < number)
                raise EngineDeadError(f"rank {self.rank} of {self.size} lost others of its group: {late} did not come")
