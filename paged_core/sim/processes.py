"""Processes: a pool of fresh ones for independent runs, which Ctrl-C ends at once."""

from __future__ import annotations

import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def fresh_processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes. Whatever ends the block early drops what has not begun; what has is waited for.

    Each process begins anew: a fork of one that has started compute threads may hang.
    """
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_die_when_interrupted)
    finished = False
    try:
        yield pool
        finished = True
    finally:
        pool.shutdown(cancel_futures=not finished)


def _die_when_interrupted() -> None:
    """Ctrl-C reaches every process; one that merely raised would take its exception for a result and go on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
