"""Transfers: blocks between the device's pool and the host's, on a stream of their own beside the steps.

    swap-out   main:  wait for the piece, gather blocks into a piece of staging ─┐
               side:                                        wait ────────────────┴─ piece -> host blocks ── done
    swap-in    side:  wait for the piece, host blocks -> piece ─┐
               main:                              wait ─────────┴─ scatter the piece into blocks ── done

So neither direction touches the pool but on the main stream, in the order in which it was asked for, and the way over
the bus, which takes long, lies beside other work of the device: a swap-in's begins while the step before still runs.

What this rests on, and promises:

1. A swap-out has read its device blocks before anything that is given to the main stream later: they may be written in
   the same step.
2. A swap-in's blocks are there for everything that is given to the main stream later.
3. Host blocks are touched on the side stream only, in the order of the calls: a swap-in finds what an earlier swap-out
   brought, a swap-out does not overtake an earlier swap-in that still reads.
4. A piece of staging is filled only after its last transfer is done, whichever direction that had.
5. The host never waits. Who reads host blocks on the host calls `wait` first, as whoever frees them.

Where the host's pool is not pinned, nothing can travel beside the host's own work: blocks are then copied at once, run
by run, and the reason is logged.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.device.stream import CudaAccelerator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.allocator import SwapPair
    from paged_core.device.stream import Accelerator

    Pairs = NDArray[np.int64]  # [n, 2]: block to read, block to write
    CopyBlocks = Callable[[Sequence[Tensor], Sequence[Tensor], Pairs], None]

log = logging.getLogger("paged_core.device")

STAGING_BYTES = 1 << 28
"""Staging in all, in two pieces; it is allocated when blocks are first swapped."""
_PIECES = 2
_LEAST_RUN_BYTES = 1 << 17
"""Mean length of a run of host blocks below which one kernel moves them all over the bus instead of a copy each: a copy
costs the host several microseconds to launch, in which the bus moves about this much."""


class Transfers:
    """Swaps blocks for one attention backend.

    `copy(sources, targets, pairs)` is the backend's own copy of blocks: for every layer, block pairs[i, 0] of
    sources[layer] to block pairs[i, 1] of targets[layer], all in one launch on torch's current stream, the host not
    waiting; it keeps nothing of `pairs`. Tensors hold blocks on axis 0, each contiguous, and lie on the device or in
    pinned host memory, which the device addresses by the same pointers.

    On the device "cpu" (interpreters, emulations) blocks are copied by torch at once and `copy` is not called.
    """

    def __init__(
        self,
        device: torch.device,
        copy: CopyBlocks,
        accelerator: Accelerator | None = None,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        self._copy = copy
        self._accelerator = accelerator
        if accelerator is None and device.type == "cuda":
            self._accelerator = CudaAccelerator(device)
        self._staging_bytes = staging_bytes
        self._road: _Road | None = None
        self._told = False

    def swap(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Copy block pair.src of every source to block pair.dst of the target of that layer.

        One side lies on the device, the other in host memory, one tensor a layer. A target block occurs once.
        """
        moves = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        if not len(moves) or not sources:
            return
        device = self._accelerator
        if device is None:
            _indexed(sources, targets, moves)
            return
        outwards = device.holds(sources[0])
        if not device.is_pinned(targets[0] if outwards else sources[0]):
            if not self._told:
                log.warning("the host's KV pool is not pinned: blocks are swapped while everything else waits")
                self._told = True
            _run_by_run(sources, targets, moves)
            return
        if self._road is None:
            self._road = _Road(device, self._copy, sources if outwards else targets, self._staging_bytes)
        move = self._road.out if outwards else self._road.back
        for part in self._road.parts(moves):
            move(sources, targets, part)

    def wait(self) -> None:
        """The host waits until every swap is done."""
        if self._road is not None:
            self._road.wait()


class _Piece:
    """A part of staging: a tensor [capacity, ...block] for each layer, and when its last transfer is done."""

    def __init__(self, device: Accelerator, pool: Sequence[Tensor], capacity: int) -> None:
        shape = (len(pool), capacity, *pool[0].shape[1:])
        self.layers = torch.empty(shape, dtype=pool[0].dtype, device=device.device).unbind(0)
        self.done = device.event()


class _Road:
    """Staging, the side stream, and both directions between pools whose host's side is pinned."""

    def __init__(self, device: Accelerator, copy: CopyBlocks, pool: Sequence[Tensor], staging_bytes: int) -> None:
        self._device = device
        self._copy = copy
        self._side = device.stream()
        self._block_bytes = pool[0][0].nbytes
        self._capacity = max(1, staging_bytes // (_PIECES * len(pool) * self._block_bytes))
        self._pieces = [_Piece(device, pool, self._capacity) for _ in range(_PIECES)]
        self._turn = 0

    def parts(self, moves: Pairs) -> Iterator[Pairs]:
        """As many moves at a time as a piece holds."""
        for begin in range(0, len(moves), self._capacity):
            yield moves[begin : begin + self._capacity]

    def out(self, sources: Sequence[Tensor], targets: Sequence[Tensor], moves: Pairs) -> None:
        """Device blocks to host blocks, at most a piece full."""
        device, piece = self._device, self._next()
        host_blocks, order = _sorted(moves[:, 1])
        gather = _pairs(moves[order, 0], np.arange(len(moves)))
        gathered = device.event()
        piece.done.wait()
        device.launch(lambda: self._copy(sources, piece.layers, gather))
        gathered.record()
        with device.on(self._side):
            gathered.wait()
            self._travel(piece.layers, targets, _pairs(np.arange(len(moves)), host_blocks))
            piece.done.record()

    def back(self, sources: Sequence[Tensor], targets: Sequence[Tensor], moves: Pairs) -> None:
        """Host blocks to device blocks, at most a piece full."""
        device, piece = self._device, self._next()
        host_blocks, order = _sorted(moves[:, 0])
        scatter = _pairs(np.arange(len(moves)), moves[order, 1])
        arrived = device.event()
        with device.on(self._side):
            piece.done.wait()
            self._travel(sources, piece.layers, _pairs(host_blocks, np.arange(len(moves))))
            arrived.record()
        arrived.wait()
        device.launch(lambda: self._copy(piece.layers, targets, scatter))
        piece.done.record()

    def wait(self) -> None:
        """The host waits for what either piece was last used for, hence for all before it."""
        for piece in self._pieces:
            piece.done.synchronize()

    def _travel(self, sources: Sequence[Tensor], targets: Sequence[Tensor], moves: Pairs) -> None:
        """Over the bus, on the current stream: a copy a run and layer, or one kernel where runs are short."""
        runs = _runs(moves)
        if len(moves) * self._block_bytes < len(runs) * _LEAST_RUN_BYTES:
            self._device.launch(lambda: self._copy(sources, targets, moves))
            return
        for source, target in zip(sources, targets, strict=True):
            for read, write, length in runs:
                self._device.copy(target[write : write + length], source[read : read + length])

    def _next(self) -> _Piece:
        self._turn = (self._turn + 1) % _PIECES
        return self._pieces[self._turn]


def _sorted(blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Host blocks in ascending order, so that neighbours travel together, and where each stood."""
    order = np.argsort(blocks, kind="stable")
    return blocks[order], order


def _pairs(read: NDArray[np.int64], write: NDArray[np.int64]) -> Pairs:
    return np.stack([read, write], axis=1).astype(np.int64)


def _runs(moves: Pairs) -> list[tuple[int, int, int]]:
    """(first block to read, first to write, length) of each run of moves that go on by one on both sides."""
    breaks = np.flatnonzero((np.diff(moves, axis=0) != 1).any(axis=1)) + 1
    bounds = [0, *breaks.tolist(), len(moves)]
    return [(int(moves[begin, 0]), int(moves[begin, 1]), end - begin) for begin, end in pairwise(bounds)]


def _indexed(sources: Sequence[Tensor], targets: Sequence[Tensor], moves: Pairs) -> None:
    read, write = (torch.from_numpy(np.ascontiguousarray(column)) for column in moves.T)
    for source, target in zip(sources, targets, strict=True):
        target.view(torch.uint8)[write] = source.view(torch.uint8)[read]  # torch indexes no float8


def _run_by_run(sources: Sequence[Tensor], targets: Sequence[Tensor], moves: Pairs) -> None:
    runs = _runs(moves[np.lexsort((moves[:, 0], moves[:, 1]))])
    for source, target in zip(sources, targets, strict=True):
        for read, write, length in runs:
            target[write : write + length].copy_(source[read : read + length])
