"""Processes: a group of workers on this machine, each a process of its own that a fresh interpreter runs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from typing import TYPE_CHECKING

from paged_core.model.parallel.board import make_board, why_not
from paged_core.model.parallel.transport import Arrival
from paged_core.model.parallel.worker import Place
from paged_exec_tp.channel import Channel
from paged_exec_tp.child import PLACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.api.executor import ExecutorNeed

log = logging.getLogger("paged_core.model")

_CODE = """import json, sys
path, arguments = json.loads(sys.argv[1])
sys.path[:] = path
from paged_exec_tp.child import main
main(*arguments)
"""
_TERM_S = 1.0
_REAP_S = 2.0


def launch(need: ExecutorNeed, shared_memory: bool) -> Processes:
    """Start a worker for each rank of `need`. They share its threads (0: as many as there are cores)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, (need.threads or cores) // need.world_size)
    board = None
    if shared_memory and need.device == "cpu" and need.world_size > 1:
        reason = why_not()
        if reason:
            log.info("ranks add up through gloo: %s", reason)
        else:
            board = make_board(need.world_size)
    try:
        return Processes(need.world_size, threads, board)
    finally:
        if board is not None:
            os.close(board)


class Processes:
    """`Transport` over a pair of sockets a worker. Workers live in sessions of their own: Ctrl-C at a terminal is for
    the engine, which then closes them. They end with the engine, however that ends."""

    host = "127.0.0.1"

    def __init__(self, size: int, threads: int, board: int | None = None) -> None:
        """`board`: a descriptor of what ranks add up on; they take copies of it."""
        self.size = size
        self._children: list[subprocess.Popen[bytes]] = []
        self._work: list[Channel] = []
        self._pulse: list[socket.socket] = []
        self._gone: set[int] = set()
        self._finalizer = weakref.finalize(self, _end_all, self._children, self._work, self._pulse)
        for rank in range(size):
            self._start(rank, threads, board)

    def _start(self, rank: int, threads: int, board: int | None) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        theirs = [pair[1] for pair in pairs]
        descriptors = [each.fileno() for each in theirs]
        arguments = json.dumps((sys.path, (rank, self.size, threads, descriptors, board)))
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _CODE, arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors if board is None else [*descriptors, board],
                start_new_session=True,
            )
        finally:
            for each in theirs:
                each.close()
        self._children.append(child)
        self._work.append(Channel(pairs[0][0]))
        self._pulse.append(pairs[1][0])

    def post(self, message: bytes, limit_s: float) -> None:
        """Rank by rank; each reads while it waits for work."""
        for channel in self._work:
            with contextlib.suppress(ConnectionError):  # `wait` tells who is gone
                channel.send(message, limit_s)

    def wait(self, limit_s: float) -> list[Arrival]:
        """Messages in the order of ranks."""
        open_ranks = {self._work[rank].sock.fileno(): rank for rank in range(self.size) if rank not in self._gone}
        poll = select.poll()
        for descriptor in open_ranks:
            poll.register(descriptor, select.POLLIN)
        arrivals: list[Arrival] = []
        for descriptor, _ in poll.poll(max(0.0, limit_s) * 1000):
            rank = open_ranks[descriptor]
            messages, goes_on = self._work[rank].arrived()
            arrivals += [Arrival(rank, message) for message in messages]
            if not goes_on:
                self._gone.add(rank)
                arrivals.append(Arrival(rank, None))
        return arrivals

    def name(self, rank: int) -> str:
        """With the process id."""
        return f"rank {rank} of {self.size} (process {self._children[rank].pid})"

    def end(self, rank: int) -> str:
        """By its exit status."""
        try:
            code = self._children[rank].wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return "closed its connection without ending"
        if code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        if -code == signal.SIGKILL:
            return f"was killed by {name} (by somebody, or by the system because memory ran out: see its log)"
        return f"was ended by {name}"

    def places(self, limit_s: float) -> Mapping[int, Place]:
        """Asks all, then listens."""
        deadline = time.monotonic() + limit_s
        asked = []
        for rank, sock in enumerate(self._pulse):
            with contextlib.suppress(OSError):
                sock.settimeout(limit_s)
                sock.sendall(b"?")
                asked.append(rank)
        found = {}
        for rank in asked:
            sock = self._pulse[rank]
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                answer = sock.recv(PLACE.size)
                if len(answer) == PLACE.size:
                    found[rank] = Place(*PLACE.unpack(answer))
        return found

    def processes(self) -> tuple[int, ...]:
        """Those that were not reaped yet."""
        return tuple(child.pid for child in self._children if child.returncode is None)

    def close(self, grace_s: float) -> None:
        """A closed socket tells a worker to leave; SIGTERM and SIGKILL follow for who does not."""
        for channel in self._work:
            channel.close()
        if grace_s:
            _wait_for(self._children, grace_s)
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        if grace_s:
            _wait_for(self._children, _TERM_S)
        self._finalizer()


def _end_all(
    children: Sequence[subprocess.Popen[bytes]], work: Sequence[Channel], pulse: Sequence[socket.socket]
) -> None:
    """Whatever happened: no process is left, and none unreaped."""
    for child in children:
        if child.poll() is None:
            child.kill()
    for child in children:
        child.wait()
    for channel in work:
        channel.close()
    for sock in pulse:
        sock.close()


def _wait_for(children: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
