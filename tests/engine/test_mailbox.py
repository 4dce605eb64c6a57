"""What crosses from the engine's thread to a loop, and how little of it piles up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from paged_core.api.output import RequestOutput
from paged_core.engine.mailbox import Mailbox, tell, wake_all


def output(name):
    return RequestOutput(name, None, [], [], finished=False)


def put(box, index, name, *, delta=False):
    if box.put(index, output(name), delta=delta):
        wake_all([box])


async def names(box):
    return [(index, one.request_id) for index, one in await box.take()]


def test_of_cumulative_outputs_the_newest_of_each_prompt_is_kept():
    async def main():
        box = Mailbox()
        for i in range(1000):
            put(box, i % 2, str(i))
        assert await names(box) == [(0, "998"), (1, "999")]

    asyncio.run(main())


def test_deltas_are_all_kept_in_order():
    async def main():
        box = Mailbox()
        for name in "abc":
            put(box, 0, name, delta=True)
        assert await names(box) == [(0, "a"), (0, "b"), (0, "c")]

    asyncio.run(main())


def test_an_error_comes_after_what_was_not_read_and_stays():
    async def main():
        box = Mailbox()
        put(box, 0, "last")
        box.fail(ValueError("over"))
        assert await names(box) == [(0, "last")]
        for _ in range(2):
            with pytest.raises(ValueError, match="over"):
                await box.take()

    asyncio.run(main())


def test_a_reader_is_woken_once_for_much_and_again_for_more():
    async def main():
        box = Mailbox()
        assert box.put(0, output("a"), delta=False)
        assert not box.put(0, output("b"), delta=False)
        assert await names(box) == [(0, "b")]
        assert box.put(0, output("c"), delta=False)
        assert not box.fail(ValueError("over"))

    asyncio.run(main())


def test_nothing_is_lost_between_a_thread_that_puts_and_a_loop_that_takes():
    async def main():
        box, seen = Mailbox(), []
        thread = threading.Thread(target=lambda: [put(box, 0, str(i), delta=True) for i in range(5000)])
        thread.start()
        async with asyncio.timeout(60):
            while len(seen) < 5000:
                seen += await names(box)
        thread.join()
        assert seen == [(0, str(i)) for i in range(5000)]

    asyncio.run(main())


def test_a_loop_that_is_closed_is_told_nothing():
    loop = asyncio.new_event_loop()
    loop.close()
    tell(loop, print, "never")
