"""LockStep: the ranks of a tensor-parallel group as threads of one process, which wait for each other at every sum.

What ranks would only notice by hanging or by wrong numbers is an error here: that they call different things, or the
same with tensors of different shapes or types.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paged_core.model.parallel.collective import Collective

    T = TypeVar("T")

_WAIT_S = 60.0


class LockStep:
    """A group of `size`. `num_sums`: what was added up so far; `num_bytes`: what of it one rank had."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_sums = self.num_bytes = 0
        self._barrier = threading.Barrier(size, timeout=_WAIT_S)
        self._given: list[tuple[str, Tensor] | None] = [None] * size
        self._ends = [_End(self, rank) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size)

    def run(self, work: Callable[[Collective], T]) -> list[T]:
        """What every rank's `work` returns. Where one raises, all stop, and its error is raised here."""

        def ranks_work(end: _End) -> T:
            torch.set_num_threads(1)
            try:
                with torch.inference_mode():
                    return work(end)
            except threading.BrokenBarrierError:
                raise
            except BaseException:
                self._barrier.abort()
                raise

        futures = [self._threads.submit(ranks_work, end) for end in self._ends]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._barrier.reset()
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    def exchange(self, rank: int, what: str, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, by rank. Raises AssertionError when the ranks do not do the same."""
        self._given[rank] = what, tensor
        self._barrier.wait()
        given = [entry for entry in self._given if entry is not None]
        kinds = {(what, tuple(tensor.shape), tensor.dtype) for what, tensor in given}
        assert len(kinds) == 1, f"the ranks do different things: {kinds}"
        tensors = [tensor.clone() for _, tensor in given]
        self._barrier.wait()
        return tensors


class _End:
    """One rank's Collective."""

    def __init__(self, group: LockStep, rank: int) -> None:
        self._group = group
        self.rank, self.size = rank, group.size

    def all_reduce(self, x: Tensor) -> Tensor:
        """In float32, in the order of ranks."""
        first, *others = self._group.exchange(self.rank, "all_reduce", x)
        if self.rank == 0:
            self._group.num_sums += 1
            self._group.num_bytes += x.nbytes
        total = first.float()
        for other in others:
            total += other
        return x.copy_(total)

    def gather_logits(self, local: Tensor) -> Tensor | None:
        """Side by side on rank 0."""
        parts = self._group.exchange(self.rank, "gather_logits", local)
        return torch.cat(parts, dim=1) if self.rank == 0 else None
