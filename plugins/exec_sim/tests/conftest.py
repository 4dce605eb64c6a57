"""The need that the tests of exec_sim vary."""

from __future__ import annotations

import pytest

from paged_core.api.executor import ExecutorNeed
from paged_core.costs.models import MODELS


@pytest.fixture
def need() -> ExecutorNeed:
    """OPT-13B in blocks of 16; this machine's memory does not matter."""
    return ExecutorNeed(
        model="opt-13b",
        spec=MODELS["opt-13b"],
        loader="",
        attn="",
        sampler="",
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        block_size=16,
        max_rows=8,
        max_len=2048,
        token_budget=2048,
        kv_memory_bytes=1 << 20,
        host_memory_bytes=0,
        eos_token_ids=(2,),
    )
