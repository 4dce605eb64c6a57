"""Processes of a comparison: they end with the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from paged_core.sim.processes import fresh_processes

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

PROGRAM = """
import pathlib, sys, time
from paged_core.sim.processes import fresh_processes

def wait(path):
    pathlib.Path(path).touch()
    time.sleep(600)

if __name__ == "__main__":
    with fresh_processes(2) as pool:
        list(pool.map(wait, sys.argv[1:]))
"""
PATIENCE_S = 120.0


def test_an_interrupt_ends_running_and_waiting_work(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    begun = [tmp_path / str(i) for i in range(6)]
    running = subprocess.Popen([sys.executable, str(program), *map(str, begun)], start_new_session=True)
    try:
        until = time.monotonic() + PATIENCE_S
        while not (begun[0].exists() and begun[1].exists()):
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        assert running.wait(PATIENCE_S) != 0
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert not begun[4].exists()


def test_an_error_of_the_block_drops_what_has_not_begun() -> None:
    futures: list[Future[None]] = []

    def fail() -> None:
        with fresh_processes(1) as pool:
            futures.extend(pool.submit(time.sleep, 0.1) for _ in range(1000))
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        fail()
    assert futures[-1].cancelled()
