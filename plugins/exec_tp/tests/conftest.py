"""Engines over ranks, and what is left of their processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paged_core import LLM
from paged_core.testing.tiny import write_tiny_llama

BOUND_S = 60
"""For whatever must end. Generous: on a busy machine an interpreter starts in ten seconds."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny"))


def is_running(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    return Path(f"/proc/{pid}").exists()


def wait_until_gone(pids, limit_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + limit_s
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.02)


@pytest.fixture
def gone():
    return wait_until_gone


@pytest.fixture
def opened(tiny):
    """Open a model over two ranks; keywords are settings, `limits` those of the plugin."""
    models = []

    def open_model(model=tiny, limits=None, **settings):
        given = {"num_blocks": 128, "attn": "attn_torch", "max_num_seqs": 8, "threads": 1, **settings}
        llm = LLM(model, tensor_parallel_size=2, plugins={"exec_tp": limits or {}}, **given)
        models.append(llm)
        return llm

    yield open_model
    for llm in models:
        llm.close()
