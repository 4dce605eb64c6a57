"""Mailbox: how outputs cross from the engine's thread to an event loop, without growing for a slow reader."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paged_core.api.output import RequestOutput


class Mailbox:
    """The outputs of one call, which may have several prompts; `take` gives what is new.

    Of outputs that hold everything so far only the newest of each prompt is kept: however slow the reader, there is at
    most one a prompt. Deltas are all kept; together they are no larger than the answer. Made inside a running loop;
    `put` and `fail` are called from the engine's thread, `take` from the loop.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._unread: dict[int, list[RequestOutput]] = {}
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._told = False

    def put(self, index: int, output: RequestOutput, *, delta: bool) -> bool:
        """Add an output of prompt `index`. True: the reader has to be woken (`wake_all`)."""
        with self._lock:
            if delta:
                self._unread.setdefault(index, []).append(output)
            else:
                self._unread[index] = [output]
            told, self._told = self._told, True
        return not told

    def fail(self, error: BaseException) -> bool:
        """Nothing more will come; the reader gets `error` after what it has not read. As `put`."""
        with self._lock:
            self._error = error
            told, self._told = self._told, True
        return not told

    async def take(self) -> list[tuple[int, RequestOutput]]:
        """Wait for news and take all of it; in the order of the prompts."""
        while True:
            with self._lock:
                unread, self._unread = self._unread, {}
                self._told = False
                self._news.clear()
                error = self._error
            if unread:
                return [(index, output) for index in sorted(unread) for output in unread[index]]
            if error is not None:
                raise error
            await self._news.wait()

    def wake(self) -> None:
        """In the loop: there is news."""
        self._news.set()


def wake_all(boxes: Iterable[Mailbox]) -> None:
    """Wake the readers of these, with one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Mailbox]] = {}
    for box in boxes:
        by_loop.setdefault(box.loop, []).append(box)
    for loop, mine in by_loop.items():
        tell(loop, _wake, mine)


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., Any], *arguments: Any) -> None:
    """Call back in `loop`, from any thread. A loop that is closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _wake(boxes: list[Mailbox]) -> None:
    for box in boxes:
        box.wake()
