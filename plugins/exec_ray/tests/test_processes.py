"""Whether a rank's process runs: asked of the system, which answers otherwise from one moment to the next."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'paged-core[ray]'")


@pytest.fixture
def runs():
    from paged_core import ray_session

    ray_session.prepare("")
    from paged_exec_ray.actors import _runs

    return _runs


def test_a_process_runs_until_it_has_ended_reaped_or_not(runs):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert runs(os.getpid())
    assert runs(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not runs(child.pid)
    child.communicate()
    assert not runs(child.pid)


def test_one_that_is_reaped_between_opening_and_reading_has_ended(runs, monkeypatch):
    """The system then answers a read with ESRCH, as it does here, from a file of a process that is gone."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with open(f"/proc/{child.pid}/stat", "rb") as file:
        child.kill()
        child.communicate()
        monkeypatch.setattr("paged_exec_ray.actors.open", lambda *ignored: file, raising=False)
        assert not runs(child.pid)
