"""Site: the device that kernels are measured on, how its time is taken and how much memory measuring may use.

What speaks to a GPU goes through an `Accelerator`, and seconds through two timers, so that tests hand in others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from paged_core.bench.timing import event_timer, idle_timer, timer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.bench.timing import Timer
    from paged_core.device.stream import Accelerator

CPU_ROTATION, CPU_MEMORY = 128 << 20, 2 << 30
_LEAST_ROTATION = 256 << 20
_CACHES = 16
"""How many times the GPU's L2 cache the data must be that calls take turns with: it is no strict queue, so that a part
of what is read in turns may still be there when its turn comes again."""
_SHARE_OF_FREE = 4
_MOST_CALLS = 100
_CPU_SAMPLE_S, _GPU_SAMPLE_S = 5e-3, 20e-3


@dataclass(frozen=True, slots=True)
class Site:
    """Where kernels run.

    timer         seconds of what an action computes on the device
    idle_timer    seconds until everything has arrived, transfers between host and device among it
    rotation      bytes that calls take turns with, so that each finds its own in memory and not in a cache
    memory        most bytes that what is measured together may take
    sample_s      least seconds of a sample: calls are repeated until they take as long
    accelerator   None on a CPU
    """

    device: torch.device
    timer: Timer
    idle_timer: Timer
    rotation: int = CPU_ROTATION
    memory: int = CPU_MEMORY
    sample_s: float = _CPU_SAMPLE_S
    accelerator: Accelerator | None = None

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        return self.device.type

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """What repeats `work`, which ran before, with next to no time on the host. On a CPU that is `work` itself.

        Raises RuntimeError with what the device says where the work cannot be captured.
        """
        return work if self.accelerator is None else self.accelerator.capture(work).replay

    def synchronize(self) -> None:
        """Wait until the device is idle, and hear of errors that it kept."""
        if self.accelerator is not None:
            self.accelerator.synchronize()

    def release(self) -> None:
        """Give the device back what nothing uses any more: torch keeps it, and others see it as taken."""
        if self.accelerator is not None:
            torch.cuda.empty_cache()


def site_of(device: str, clock: str = "wall") -> Site:
    """The site of "cpu", by one of `CLOCKS`, or of "cuda", whose clock is its own."""
    if device == "cpu":
        timer = timer_of(clock)
        return Site(torch.device("cpu"), timer, timer)
    from paged_core.device.stream import CudaAccelerator

    accelerator = CudaAccelerator(torch.device("cuda", torch.cuda.current_device()))
    cache_bytes = torch.cuda.get_device_properties(accelerator.device).L2_cache_size
    return Site(
        accelerator.device,
        event_timer(accelerator),
        idle_timer(accelerator),
        rotation=max(_LEAST_ROTATION, _CACHES * cache_bytes),
        memory=accelerator.memory()[0] // _SHARE_OF_FREE,
        sample_s=_GPU_SAMPLE_S,
        accelerator=accelerator,
    )


def enough(seconds: float, site: Site) -> int:
    """How many calls of so many seconds each make a sample that is long enough."""
    return max(1, min(_MOST_CALLS, round(site.sample_s / max(seconds, 1e-6))))


def repeated(action: Callable[[], object], count: int) -> Callable[[], object]:
    """`action`, `count` times."""
    return partial(_repeat, action, count)


def _repeat(action: Callable[[], object], count: int) -> None:
    for _ in range(count):
        action()
