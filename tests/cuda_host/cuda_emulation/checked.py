"""CheckedAttention: every call runs in several orders of threads and blocks, between guard pages, to the same bits."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from cuda_emulation.guarded import GuardedMemory
from cuda_emulation.host import HostLauncher, Order
from paged_core.api.attention import Attention, AttentionLayer, KVLayout
from paged_core.api.batch import DeviceBatch
from paged_core.device.staging import on_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.attention import AttentionNeed
    from paged_core.api.batch import Batch

MOST_GUARDED_BYTES = 64 << 20  # of a cache; larger ones stay where they are


@dataclass(slots=True)
class _Plan:
    """The backend's plan over guarded arrays, and the arrays that they are copies of: filled anew before each run."""

    inner: Any
    arrays: list[tuple[Tensor, Tensor]]  # (the caller's, guarded)
    memory: GuardedMemory


class CheckedAttention(Attention):
    """A backend of attn_cuda over the emulation, under the strictest conditions it can be run in.

    Each call runs forwards, backwards and at random (another seed each time), on copies of all tensors that end at
    pages without access, strides kept. Raises AssertionError where two orders disagree in a bit of output, log-sum-exp
    or cache, or where bytes in front of a tensor were written to; HostKernelError as the launcher does.
    """

    def __init__(self, need: AttentionNeed, launcher: HostLauncher | None = None) -> None:
        from paged_attn_cuda.backend import CudaAttention

        self._launcher = launcher = launcher or HostLauncher()
        self._seed = 0
        self._memory = GuardedMemory()  # of the backend itself
        with patch.multiple("paged_attn_cuda.backend", Scratch=self._scratch, uploaded=self._uploaded):
            self._inner = CudaAttention(need, launcher)
        self._device = torch.device(need.device)

    def layout(self, num_blocks: int) -> KVLayout:
        """The backend's."""
        return self._inner.layout(num_blocks)

    def plan(self, batch: Batch) -> Any:
        """The backend's, over guarded copies of the batch's arrays."""
        memory = GuardedMemory()
        theirs = on_device(batch, self._device)
        names = [field.name for field in fields(DeviceBatch)]
        ours = DeviceBatch(**{name: memory.like(getattr(theirs, name), name) for name in names})
        arrays = [(getattr(theirs, name), getattr(ours, name)) for name in names]
        rope = [(memory.like(cos, f"cos {i}"), memory.like(sin, f"sin {i}")) for i, (cos, sin) in enumerate(batch.rope)]
        for given, own in zip(batch.rope, rope, strict=True):
            arrays += zip(given, own, strict=True)
        return _Plan(self._inner.plan(replace(batch, on_device=ours, rope=rope)), arrays, memory)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: Any, out: Tensor
    ) -> Tensor | None:
        """`Attention.forward` of the backend, checked."""
        for theirs, ours in plan.arrays:
            ours.copy_(theirs)

        def run(memory: GuardedMemory) -> list[Tensor]:
            own_q, own_k, own_v = (memory.like(each, name) for each, name in ((q, "q"), (k, "k"), (v, "v")))
            cache, result = _guarded(memory, kv, "cache"), memory.like(out, "out")
            lse = self._inner.forward(layer, own_q, own_k, own_v, cache, plan.inner, result)
            plan.memory.check()
            return [result, cache] if lse is None else [result, cache, lse]

        result, cache, *lse = self._in_every_order(run)
        out.copy_(result)
        kv.copy_(cache)
        return lse[0] if lse else None

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """`Attention.copy_blocks` of the backend, checked."""

        def run(memory: GuardedMemory) -> list[Tensor]:
            guarded = [_guarded(memory, cache, f"cache {i}") for i, cache in enumerate(caches)]
            self._inner.copy_blocks(guarded, copies)
            return guarded

        for cache, result in zip(caches, self._in_every_order(run), strict=True):
            cache.copy_(result)

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """`Attention.swap_blocks` of the backend, checked."""

        def run(memory: GuardedMemory) -> list[Tensor]:
            guarded = [_guarded(memory, each, f"target {i}") for i, each in enumerate(targets)]
            self._inner.swap_blocks([_guarded(memory, each, "source") for each in sources], guarded, pairs)
            return guarded

        for target, result in zip(targets, self._in_every_order(run), strict=True):
            target.copy_(result)

    def _in_every_order(self, run: Callable[[GuardedMemory], list[Tensor]]) -> list[Tensor]:
        self._seed += 1
        first: list[Tensor] = []
        for order in (Order("forward"), Order("reverse"), Order("random", self._seed)):
            self._launcher.order = order
            with GuardedMemory() as memory:
                results = run(memory)
                memory.check()
                self._memory.check()
            first = first or results
            for index, (one, other) in enumerate(zip(first, results, strict=True)):
                wrong = int((_bits(one) != _bits(other)).sum()) if one is not other else 0
                assert not wrong, (
                    f"a race: {wrong} bytes of result {index} {tuple(one.shape)} differ between the orders forward and "
                    f"{order}"
                )
        return first

    def _scratch(self, dtype: torch.dtype, device: torch.device, num_elements: int = 0) -> _GuardedScratch:
        return _GuardedScratch(self._memory, dtype)

    def _uploaded(self, array: Any, device: torch.device) -> Tensor:
        return self._memory.like(torch.from_numpy(array), "an uploaded array")


class _GuardedScratch:
    """`paged_core.device.scratch.Scratch`, whose memory ends where it was asked to: one tensor for each size."""

    def __init__(self, memory: GuardedMemory, dtype: torch.dtype) -> None:
        self._memory = memory
        self._dtype = dtype
        self._taken: dict[int, Tensor] = {}

    def take(self, num_elements: int) -> Tensor:
        """Exactly so many elements."""
        if num_elements not in self._taken:
            self._taken[num_elements] = self._memory.empty((num_elements,), self._dtype, "scratch")
        return self._taken[num_elements]


def _guarded(memory: GuardedMemory, cache: Tensor, name: str) -> Tensor:
    return memory.like(cache, name) if cache.nbytes <= MOST_GUARDED_BYTES else cache


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor
