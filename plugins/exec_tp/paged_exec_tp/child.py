"""The process of one rank. It has two sockets: one for work, and one, served by a thread of its own, by which the
engine asks where it is. When the other end of that is gone, so is the engine, and the process ends at once, whatever it
waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.model.parallel.worker import Place

PLACE = struct.Struct("<qq")
_LOOK_S = 1.0


def main(rank: int, size: int, threads: int, descriptors: tuple[int, int], board: int | None) -> None:
    """Obey until the engine closes its end. What libraries print goes to standard error: answers are the engine's."""
    os.dup2(2, 1)
    logging.lastResort = None  # records travel to the engine
    from paged_core.model.parallel.shard import Shard
    from paged_core.model.parallel.worker import Worker
    from paged_exec_tp.channel import Channel

    work, pulse = (Channel(socket.socket(fileno=number)) for number in descriptors)
    lock = threading.Lock()

    def say(message: bytes) -> None:
        with lock:  # a log record of another thread must not fall into an answer
            work.send(message)

    worker = Worker(Shard(rank, size), "127.0.0.1", threads, say, board)
    thread = threading.Thread(target=_answer, args=(pulse.sock, worker.place, os.getppid()), daemon=True)
    thread.start()
    with contextlib.suppress(ConnectionError):  # it closed its end in the middle of a step, and wants no answer
        while (message := work.receive()) is not None:
            answer = worker.obey(message)
            if answer is not None:
                say(answer)
    os._exit(0)  # nothing of libraries' own clean-up may wait for ranks that have left


def _answer(sock: socket.socket, place: Place, parent: int) -> None:
    """Tell where the rank is, to whoever asks; end the process when nobody is there to ask any more."""
    sock.settimeout(_LOOK_S)
    while True:
        try:
            if not sock.recv(1):
                break
            sock.sendall(PLACE.pack(place.step, place.num_meetings))
        except TimeoutError:
            if os.getppid() != parent:  # the engine is gone, and a child of its holds the other end
                break
        except OSError:
            break
    os._exit(1)
