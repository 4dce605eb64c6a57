"""Graphs: a step of decodes captured once for each of a bounded number of batch sizes, and launched again as a whole.

A batch of 13 sequences takes the graph of 16: the smallest that is large enough. What a graph reads and writes lies
where it lay when it was captured; whoever fills those places keeps to them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.device.stream import Accelerator, Graph

log = logging.getLogger("paged_core.device")
news = logging.getLogger("paged_core.news")

LARGEST = 512
"""Sequences of the largest graph: a step of more keeps the device busy for longer than the host needs to launch it."""


def batch_sizes(most: int) -> list[int]:
    """Sizes worth a graph, up to `most` sequences or LARGEST, ascending: 1, 2, 4, by 8 up to 256, by 16 beyond."""
    most = min(most, LARGEST)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, LARGEST + 1, 16)]
    return sorted({size for size in sizes if size < most} | {most})


class Graphs:
    """Captured work by batch size; empty where capturing was not possible, and the reason was logged."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._graphs: dict[int, Graph] = {}
        self._sizes: list[int] = []

    def capture(self, sizes: list[int], prepare: Callable[[int], Callable[[], object]]) -> None:
        """Capture `prepare(size)` for every size, the largest first, so that others find room in its memory.

        `prepare` puts a batch of that size where the work finds it. The work is done once before it is captured:
        what is compiled, chosen or allocated on first use may not happen in between. What fails then is raised; if
        capturing fails, there are no graphs.
        """
        begin, (free, _) = time.perf_counter(), self._accelerator.memory()
        news.info("capturing decode steps of %d sizes up to %d sequences", len(sizes), max(sizes))
        captured = {}
        for size in sorted(sizes, reverse=True):
            work = prepare(size)
            self._accelerator.launch(work)
            self._accelerator.synchronize()
            try:
                captured[size] = self._accelerator.capture(work)
            except Exception as error:  # whatever the device or a kernel's launcher says
                log.warning("steps run without CUDA graphs: capturing %d sequences failed: %s", size, _cause(error))
                return
        self._graphs, self._sizes = captured, sorted(captured)
        taken = free - self._accelerator.memory()[0]
        news.info("captured %d steps in %.1f s, %d MiB", len(sizes), time.perf_counter() - begin, taken >> 20)

    def size_for(self, num_seqs: int) -> int | None:
        """The batch size whose graph serves so many sequences; None where none does."""
        place = bisect_left(self._sizes, num_seqs)
        return self._sizes[place] if place < len(self._sizes) else None

    def replay(self, size: int) -> None:
        """Launch the work captured for `size`."""
        self._graphs[size].replay()

    def __len__(self) -> int:
        return len(self._graphs)


def _cause(error: BaseException) -> str:
    """What went wrong first: ending a capture that failed raises an error of its own on top."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
