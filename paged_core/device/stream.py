"""Accelerator: streams, events, pinned memory and captured work of one device; the only file that speaks to torch.cuda.

Whoever orders work on a device takes one, so that tests can hand in another which keeps work back, runs it as late or
as early as its events allow, and thereby shows where an event is missing (`paged_core.testing.accelerator`).

Work goes to the current stream: the main one, or another within `on`. Streams run their own work in order and know
nothing of each other but for events.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor


class Event(Protocol):
    """A point in the work of a stream. Before the first `record` nobody waits for it."""

    def record(self) -> None:
        """It stands after what the current stream was given so far; who waits already, waits for where it stood."""
        ...

    def wait(self) -> None:
        """What the current stream is given from now on begins after it. The host goes on at once."""
        ...

    def synchronize(self) -> None:
        """The host waits for it."""
        ...

    def seconds_since(self, earlier: Event) -> float:
        """Of two timed events that have passed."""
        ...


class Graph(Protocol):
    """Captured work, to be launched again as it was, addresses included."""

    def replay(self) -> None:
        """On the current stream."""
        ...


class Accelerator(Protocol):
    """One device and the memory of its host."""

    device: torch.device

    def event(self, *, timed: bool = False) -> Event:
        """A new one."""
        ...

    def stream(self) -> object:
        """A new stream, for `on`."""
        ...

    def on(self, stream: object) -> AbstractContextManager[object]:
        """Make it the current one."""
        ...

    def launch(self, work: Callable[[], object]) -> None:
        """`work` gives the current stream something to do. It may be called later, but in the order of its stream."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """On the current stream, between device and pinned memory or within the device; the host goes on at once."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Whether it lies in the device's own memory."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory, not filled, that the device reads and writes by itself."""
        ...

    def pin(self, tensor: Tensor) -> str:
        """Make a host tensor's memory such, where it is, until it is unpinned. Returns why that failed, or ""."""
        ...

    def unpin(self, tensor: Tensor) -> None:
        """Undo `pin`, before the memory goes."""
        ...

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a host tensor's memory is such."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """What `work` gives the current stream, not done now but whenever the graph is replayed.

        Raises what the device says where something in it cannot be captured.
        """
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes of the device: free, and in all."""
        ...

    def synchronize(self) -> None:
        """The host waits for everything. Not for use in a step."""
        ...

    def release(self) -> None:
        """Memory that no tensor of this process needs any more is free for all."""
        ...


class CudaEvent:
    """An event of torch.cuda."""

    def __init__(self, *, timed: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        self._recorded = False

    def record(self) -> None:
        """On the current stream."""
        self._event.record()
        self._recorded = True

    def wait(self) -> None:
        """On the current stream."""
        if self._recorded:
            self._event.wait()

    def synchronize(self) -> None:
        """Blocks the host."""
        if self._recorded:
            self._event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        """Both on the device's clock."""
        assert isinstance(earlier, CudaEvent)
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class CudaAccelerator:
    """torch.cuda. All graphs share one pool of memory: they are replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def event(self, *, timed: bool = False) -> CudaEvent:
        """A new one."""
        return CudaEvent(timed=timed)

    def stream(self) -> torch.cuda.Stream:
        """A new one from torch's pool."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self, stream: object) -> AbstractContextManager[object]:
        """`torch.cuda.stream`."""
        assert isinstance(stream, torch.cuda.Stream)
        return torch.cuda.stream(stream)

    def launch(self, work: Callable[[], object]) -> None:
        """At once: the device keeps its own queue."""
        work()

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Asynchronous."""
        target.copy_(source, non_blocking=True)

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is a CUDA tensor."""
        return tensor.is_cuda

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """From torch's allocator, which rounds up to a power of two: for small buffers."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def pin(self, tensor: Tensor) -> str:
        """Registers the tensor's memory with the driver: exactly its size, unlike `pinned`."""
        if tensor.numel() == 0:
            return ""
        error = int(_runtime().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if not error:
            return ""
        # the runtime tells it again to whoever launches the next kernel; nothing else clears it
        with suppress(RuntimeError):
            torch.zeros(1, device=self.device)
        return f"cudaHostRegister of {tensor.nbytes:,} bytes failed with error {error}"

    def unpin(self, tensor: Tensor) -> None:
        """Forgets it at the driver."""
        if tensor.numel():
            _runtime().cudaHostUnregister(tensor.data_ptr())

    def is_pinned(self, tensor: Tensor) -> bool:
        """Asks the driver."""
        return tensor.is_pinned()

    def capture(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """`torch.cuda.graph`. Other threads' calls do not spoil it."""
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        collects = gc.isenabled()
        gc.disable()  # what it frees meanwhile, another graph perhaps, would spoil the capture
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        finally:
            if collects:
                gc.enable()
        return graph

    def memory(self) -> tuple[int, int]:
        """As the driver sees it: other processes' memory is not free."""
        free, total = torch.cuda.mem_get_info(self.device)
        return int(free), int(total)

    def synchronize(self) -> None:
        """The whole device."""
        torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Empties torch's cache; `memory` of the next engine in this process would not count it as free."""
        torch.cuda.empty_cache()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
