"""TextThreads: tokenising, templates and parsing off the event loop, so that others are answered meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_BYTES = 1 << 16
"""Bodies from here on queue for a thread of their own: a few long ones do not hold up the many short ones."""
_NUM_SHORT = 2


class TextThreads:
    """Two queues, short and long, each in the order of arrival."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(_NUM_SHORT, thread_name_prefix="paged-core-text")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="paged-core-long-text")

    async def run(self, num_bytes: int, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `work`, which has to do with a body of so many bytes."""
        pool = self._short if num_bytes < LONG_BYTES else self._long
        return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)

    def close(self) -> None:
        """End the threads; what has not begun is dropped."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
