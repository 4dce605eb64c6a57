"""offer: sends requests when they are due, whatever became of those before."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from paged_core.bench.serve.record import Record, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from paged_core.workload.traces import Arrival

    Clock = Callable[[], float]
    Send = Callable[[int], Awaitable[Reply]]


async def offer(
    plan: Sequence[Arrival], send: Send, max_concurrency: int | None = None, clock: Clock = time.perf_counter
) -> list[Record]:
    """Send request i of `plan` at `plan[i].at_s` seconds by calling `send(i)`; returns when all have ended, in order.

    An open loop: a slow server does not slow the arrivals. With `max_concurrency` requests that are due wait for a
    place, first come first served, and their times count from when they get it.
    """
    gate = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    began = clock()

    async def one(index: int) -> Record:
        woke_s = clock() - began
        async with gate:
            sent_s = clock() - began
            reply = await send(index)
        return Record(
            asked=plan[index],
            woke_s=woke_s,
            sent_s=sent_s,
            ended_s=clock() - began,
            text_s=tuple(at - began for at in reply.text_s),
            num_prompt=reply.num_prompt,
            usage_output=reply.num_output,
            error=reply.error,
            detail=reply.detail,
        )

    tasks = []
    async with asyncio.TaskGroup() as group:
        for index, asked in enumerate(plan):
            await asyncio.sleep(max(0.0, began + asked.at_s - clock()))
            tasks.append(group.create_task(one(index)))
    return [task.result() for task in tasks]
