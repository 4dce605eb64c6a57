"""Rank: one rank as a Ray actor. One thread obeys; another tells where it is, also when the first one is stuck."""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ray.util import get_node_ip_address
from ray.util.metrics import Histogram

from paged_core.model.parallel.message import ORDER, STEP, kind_of, pack, unpack
from paged_core.model.parallel.orders import Muster
from paged_core.model.parallel.shard import Shard
from paged_core.model.parallel.worker import Worker, at_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.api.executor import ExecutorNeed
    from paged_core.model.parallel.worker import Place

_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]


class Where(NamedTuple):
    """Where a rank runs: host name, address at which others reach it, process."""

    host: str
    address: str
    process: int


class Rank:
    """Rank `rank` of `size`. `threads`: to compute with, 0 = the library's default. `model_paths`: where the model is,
    by host name or address, on nodes that have it elsewhere than the engine."""

    def __init__(self, rank: int, size: int, threads: int, model_paths: Mapping[str, str]) -> None:
        self._where = Where(socket.gethostname(), get_node_ip_address(), os.getpid())
        self._model_paths = model_paths
        self._said: deque[bytes] = deque()
        self._worker = Worker(Shard(rank, size), self._where.address, threads, self._said.append)
        self._seconds = Histogram(
            "paged_core_rank_step_seconds",
            description="Time of a step on one rank of a tensor-parallel group",
            boundaries=_SECONDS,
            tag_keys=("rank",),
        )
        self._seconds.set_default_tags({"rank": str(rank)})

    def where(self) -> Where:
        """Where it runs."""
        return self._where

    def place(self) -> Place:
        """The step it works on."""
        return self._worker.place

    def obey(self, message: bytes) -> list[bytes]:
        """What it said meanwhile (log records), and the answer, if the message has one."""
        is_step = kind_of(message) == STEP
        begin = perf_counter()
        answer = self._worker.obey(message if is_step else self._localized(message))
        if is_step:
            self._seconds.observe(perf_counter() - begin)
        messages = [self._said.popleft() for _ in range(len(self._said))]
        return messages if answer is None else [*messages, answer]

    def _localized(self, message: bytes) -> bytes:
        order = unpack(message)
        return pack(ORDER, replace(order, need=self._here(order.need))) if isinstance(order, Muster) else message

    def _here(self, need: ExecutorNeed) -> ExecutorNeed:
        """The need with this node's paths."""
        paths = self._model_paths
        return at_home(need, paths.get(self._where.host, paths.get(self._where.address, need.model)))
