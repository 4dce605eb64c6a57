"""Replicas in simulated time: chunked prefill before decode, a prefix cache that forgets the oldest, steps that take
longer the more there is in them. Enough to see what a router does to the time to the first token."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_core.cluster.order import Order
from paged_core.cluster.policy import LMetric, Report
from paged_core.cluster.prefixes import KnownPrefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 16
STEP_S, PREFILL_S, SEQ_S = 0.010, 0.00005, 0.0005  # a step, each token prefilled in it, each sequence decoded in it
BUDGET = 2048
SOURCE = "here"


@dataclass
class Call:
    """A prompt that begins with one of many prefixes. `at_s`: its arrival."""

    at_s: float
    prefix: int
    num_prefix: int
    num_own: int
    num_output: int
    number: int
    first_s: float = 0.0
    left_prefill: int = 0
    left_decode: int = 0
    order: Order = field(init=False)

    def __post_init__(self) -> None:
        blocks, own = self.num_prefix // BLOCK, self.num_own // BLOCK
        keys = [self.prefix * 100_000 + i for i in range(blocks)] + [-self.number * 1000 - i for i in range(own)]
        self.order = Order((tuple(keys),), self.num_prefix + self.num_own, 1, SOURCE)

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.at_s


class SimulatedReplica:
    """One engine. `advance` runs its steps up to a moment."""

    def __init__(self, num_blocks: int) -> None:
        self.now = 0.0
        self.cache = KnownPrefixes(num_blocks)
        self.prefilling: deque[Call] = deque()
        self.decoding: list[Call] = []

    @property
    def num_open(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def add(self, call: Call) -> None:
        (keys,) = call.order.keys
        cached = min(self.cache.match(keys) * BLOCK, call.order.num_tokens - 1)
        self.cache.remember(keys)
        call.left_prefill, call.left_decode = call.order.num_tokens - cached, call.num_output
        self.now = max(self.now, call.at_s) if not self.num_open else self.now
        self.prefilling.append(call)

    def advance(self, until_s: float) -> None:
        while self.num_open and self.now < until_s:
            self._step()

    def _step(self) -> None:
        room, begun = BUDGET, []
        while self.prefilling and room:
            call = self.prefilling[0]
            num = min(room, call.left_prefill)
            call.left_prefill -= num
            room -= num
            if call.left_prefill:
                break
            begun.append(self.prefilling.popleft())
        self.now += STEP_S + (BUDGET - room) * PREFILL_S + len(self.decoding) * SEQ_S
        for call in self.decoding:
            call.left_decode -= 1
            call.order.has_ended = not call.left_decode
        for call in begun:
            call.first_s, call.order.has_begun = self.now, True
        self.decoding = [call for call in self.decoding + begun if call.left_decode]


Route = "Callable[[Call, Sequence[SimulatedReplica]], int]"


def simulate(calls: Sequence[Call], route: Callable[[Call, Sequence[SimulatedReplica]], int], num: int = 16) -> None:
    """Give each call its first token and its end."""
    replicas = [SimulatedReplica(num_blocks=4096) for _ in range(num)]
    for call in calls:
        for replica in replicas:
            replica.advance(call.at_s)
        replicas[route(call, replicas)].add(call)
    for replica in replicas:
        replica.advance(float("inf"))


def round_robin() -> Callable[[Call, Sequence[SimulatedReplica]], int]:
    return lambda call, replicas: call.number % len(replicas)


def least_loaded() -> Callable[[Call, Sequence[SimulatedReplica]], int]:
    return lambda call, replicas: min(range(len(replicas)), key=lambda i: (replicas[i].num_open, random.random()))


def lmetric(policy: LMetric | None = None) -> Callable[[Call, Sequence[SimulatedReplica]], int]:
    policy = policy or LMetric()

    def route(call: Call, replicas: Sequence[SimulatedReplica]) -> int:
        policy.update({str(i): Report(num_blocks=4096, block_size=BLOCK) for i in range(len(replicas))})
        best = policy.rank(call.order)[0]
        policy.place(call.order, best)
        return int(best)

    return route


def arrivals(
    rate: float, num: int, prefix_of: Callable[[random.Random], int], seed: int = 0, **shape: int
) -> list[Call]:
    """Poisson arrivals whose prefixes `prefix_of` draws."""
    rng = random.Random(seed)
    sizes = {"num_prefix": 4000, "num_own": 96, "num_output": 60, **shape}
    now, calls = 0.0, []
    for number in range(num):
        now += rng.expovariate(rate)
        calls.append(Call(now, prefix_of(rng), number=number, **sizes))
    return calls


def mean_ttft_ms(calls: Sequence[Call]) -> float:
    return sum(call.ttft_s for call in calls) / len(calls) * 1e3
