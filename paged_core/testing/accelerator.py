"""FakeAccelerator: a device whose streams keep work back and run it as late, or in as odd an order, as events allow.

What is right only because everything happens at once comes out wrong here: a copy that overtakes what it should wait
for, memory that is written while something still reads it, a host that looks before a transfer is done.
"""

from __future__ import annotations

import random
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from paged_core.device.stream import Event


@dataclass(slots=True, eq=False)
class _Mark:
    """One `record` of an event."""

    passed: bool = False


@dataclass(slots=True, eq=False)
class FakeStream:
    """Work that was not done yet, marks and waits among it."""

    name: str
    queue: deque[Callable[[], bool]] = field(default_factory=deque)
    """Each answers whether it could be done."""


class FakeEvent:
    """Knows its last mark."""

    def __init__(self, device: FakeAccelerator) -> None:
        self._device = device
        self._mark: _Mark | None = None

    def record(self) -> None:
        """A mark at the end of the current stream."""
        mark = self._mark = _Mark()
        self._device._add(lambda: _passed(mark))

    def wait(self) -> None:
        """The current stream stops until the mark was passed."""
        mark = self._mark
        if mark is not None and not self._device.deaf:
            self._device._add(lambda: mark.passed)

    def synchronize(self) -> None:
        """Do what must be done before the mark, and then show the host what came to it."""
        if self._mark is not None:
            self._device._run_until(self._mark)
            self._device._deliver()

    def seconds_since(self, earlier: Event) -> float:
        """Time does not pass here."""
        return 0.0


class FakeGraph:
    """The functions that a capture was given, to be called again. Tensors they made stay where they were."""

    def __init__(self, device: FakeAccelerator, work: Callable[[], object]) -> None:
        self._device = device
        self._work = work
        self.num_replays = 0

    def replay(self) -> None:
        """Call them."""
        self.num_replays += 1
        self._device.launch(self._work)


class FakeAccelerator:
    """Tensors of the "device" are ordinary ones; those from `pinned`, and those given to `pin`, are the host's.

    `seed` chooses the order of what is free to go. `is_eager`: the main stream does its work when it is given, so that
    code which computes on its tensors directly sees them; other streams then wait for as long as they can, what is
    copied to the host is delivered when the host waits, and a copy from host memory that changes before the host
    waited raises AssertionError. `deaf`: waits are ignored, to see that somebody notices.
    """

    def __init__(self, seed: int = 0, *, is_eager: bool = False, deaf: bool = False) -> None:
        self.device = torch.device("cpu")
        self.deaf = deaf
        self.pins_left = 1 << 20
        self.refuses_capture = False
        self.free_bytes, self.total_bytes = 1 << 30, 1 << 31
        self.num_copies = 0
        self.num_graphs = 0
        self._is_eager = is_eager
        self._random = random.Random(seed)
        self._main = FakeStream("main")
        self._streams = [self._main]
        self._current = self._main
        self._host: list[Tensor] = []
        self._unpinned: list[Tensor] = []
        self._outgoing: list[tuple[Tensor, Tensor]] = []  # device to host, not delivered yet
        self._incoming: list[tuple[Tensor, Tensor]] = []  # host to device: memory, and what it held

    # -- what an accelerator does ---------------------------------------------------------------------------------

    def event(self, *, timed: bool = False) -> FakeEvent:
        """A new one."""
        return FakeEvent(self)

    def stream(self) -> FakeStream:
        """A new one."""
        self._streams.append(FakeStream(f"side {len(self._streams)}"))
        return self._streams[-1]

    @contextmanager
    def on(self, stream: object) -> Iterator[None]:
        """Make it the current one."""
        assert isinstance(stream, FakeStream)
        before, self._current = self._current, stream
        yield
        self._current = before

    def launch(self, work: Callable[[], object]) -> None:
        """Keep it, or do it if this is the main stream of an eager device."""
        self._add(lambda: (work(), True)[1])

    def copy(self, target: Tensor, source: Tensor) -> None:
        """A copy between tensors of one shape."""
        assert target.shape == source.shape, (target.shape, source.shape)
        self.num_copies += 1
        deferred = self._is_eager and self._current is self._main
        self.launch(lambda: self._copied(target, source, deferred))

    def holds(self, tensor: Tensor) -> bool:
        """Whatever is not the host's."""
        return not self._is_in(tensor, self._host) and not self._is_in(tensor, self._unpinned)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The host's memory, filled with garbage."""
        made = torch.empty(shape, dtype=dtype)
        made.view(torch.uint8).fill_(0xA5)
        self._host.append(made)
        return made

    def pageable(self, tensor: Tensor) -> Tensor:
        """Declare a tensor the host's, not pinned."""
        self._unpinned.append(tensor)
        return tensor

    def pin(self, tensor: Tensor) -> str:
        """Declare a tensor the host's."""
        if not self.pins_left:
            self._unpinned.append(tensor)
            return "this device pins no more"
        self.pins_left -= 1
        self._host.append(tensor)
        return ""

    def unpin(self, tensor: Tensor) -> None:
        """Forget it."""
        self._host = [other for other in self._host if other is not tensor]

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether it came from `pinned` or went through `pin`."""
        return self._is_in(tensor, self._host)

    def capture(self, work: Callable[[], object]) -> FakeGraph:
        """Does not do it."""
        if self.refuses_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.num_graphs += 1
        return FakeGraph(self, work)

    def memory(self) -> tuple[int, int]:
        """What the test says."""
        return self.free_bytes, self.total_bytes

    def synchronize(self) -> None:
        """Do everything."""
        while any(stream.queue for stream in self._streams):
            self._run_one()
        self._deliver()

    def release(self) -> None:
        """Nothing is kept."""

    # -- how it is kept back --------------------------------------------------------------------------------------

    def _add(self, work: Callable[[], bool]) -> None:
        self._current.queue.append(work)
        if self._is_eager and self._current is self._main:
            while self._main.queue:
                if self._main.queue[0]():
                    self._main.queue.popleft()
                else:
                    self._run_one(self._streams[1:])

    def _run_until(self, mark: _Mark) -> None:
        while not mark.passed:
            self._run_one()

    def _run_one(self, streams: list[FakeStream] | None = None) -> None:
        """The next work of some stream whose next work is free to go."""
        waiting = [stream for stream in streams or self._streams if stream.queue]
        self._random.shuffle(waiting)
        for stream in waiting:
            if stream.queue[0]():
                stream.queue.popleft()
                return
        raise AssertionError(f"deadlock: {', '.join(stream.name for stream in waiting) or 'nothing'} waits for ever")

    def _copied(self, target: Tensor, source: Tensor, deferred: bool) -> None:
        for memory, content in self._incoming:
            assert torch.equal(memory, content), "host memory changed while a copy from it was under way"
        if deferred and self.is_pinned(target):
            self._outgoing.append((target, source.clone()))
            return
        target.copy_(source)
        if deferred and self.is_pinned(source):
            self._incoming.append((source, source.clone()))

    @torch.inference_mode()
    def _deliver(self) -> None:
        for target, content in self._outgoing:
            target.copy_(content)
        for memory, content in self._incoming:
            assert torch.equal(memory, content), "host memory changed while a copy from it was under way"
        self._outgoing, self._incoming = [], []

    def _is_in(self, tensor: Tensor, some: list[Tensor]) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(other.untyped_storage().data_ptr() == address for other in some)


def _passed(mark: _Mark) -> bool:
    mark.passed = True
    return True
