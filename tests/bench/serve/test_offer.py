"""The open loop: requests go when they are due, on a clock that jumps."""

from __future__ import annotations

import asyncio
from typing import Any

from paged_core.bench.serve.offer import offer
from paged_core.bench.serve.record import Record, Reply
from paged_core.workload.traces import Arrival

PLAN = [Arrival(at, 1, 1) for at in (0.0, 0.5, 1.0, 1.0)]


def offered(loop: Any, seconds: float, **how: Any) -> list[Record]:
    async def send(index: int) -> Reply:
        await asyncio.sleep(seconds)
        return Reply(text_s=[loop.time()])

    return list(loop.run_until_complete(offer(PLAN, send, clock=loop.time, **how)))


def test_a_slow_server_does_not_slow_the_arrivals(loop: Any) -> None:
    found = offered(loop, 10.0)
    assert [one.sent_s for one in found] == [0.0, 0.5, 1.0, 1.0]
    assert [one.ended_s for one in found] == [10.0, 10.5, 11.0, 11.0]
    assert [one.text_s for one in found] == [(10.0,), (10.5,), (11.0,), (11.0,)]


def test_a_limit_holds_requests_in_their_order_and_says_since_when(loop: Any) -> None:
    found = offered(loop, 10.0, max_concurrency=1)
    assert [one.woke_s for one in found] == [0.0, 0.5, 1.0, 1.0]
    assert [one.sent_s for one in found] == [0.0, 10.0, 20.0, 30.0]


def test_times_count_from_the_start_of_the_run(loop: Any) -> None:
    loop.stall(1000.0)
    assert [one.sent_s for one in offered(loop, 1.0)] == [0.0, 0.5, 1.0, 1.0]


def test_a_client_that_was_kept_busy_knows_that_it_is_late(loop: Any) -> None:
    async def send(index: int) -> Reply:
        if index == 0:
            loop.stall(0.75)
        return Reply(text_s=[loop.time()])

    found = loop.run_until_complete(offer(PLAN, send, clock=loop.time))
    assert [one.woke_s - one.due_s for one in found] == [0.0, 0.25, 0.0, 0.0]
