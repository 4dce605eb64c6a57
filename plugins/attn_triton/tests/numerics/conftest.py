"""Kernels as they run here: on a GPU, or on the CPU where Triton interprets them (TRITON_INTERPRET=1).

A process interprets all kernels or none, so these tests run in one of their own: test_interpreter.py and test_gpu.py
start it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
from paged_attn_triton.attention import TritonAttention
from paged_attn_triton.shapes import Shape
from paged_attn_triton.splits import InvariantSplits, SplitRule

from paged_core.api.attention import AttentionNeed

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if triton.knobs.runtime.interpret else "cuda"


@pytest.fixture(scope="session")
def capability(device: str) -> int:
    if device == "cpu":
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@pytest.fixture
def create(device: str, capability: int) -> Callable[..., TritonAttention]:
    """A backend for a need on a device of so many processors, where `split_tokens` of a context are worth a part."""

    def make(processors: int = 8, split_tokens: int = 256, **changes: Any) -> TritonAttention:
        values: dict[str, Any] = {"dtype": "float32", "num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
        values |= {"block_size": 16, "max_len": 4096, "max_rows": 8, "token_budget": 256, "device": device} | changes
        need = AttentionNeed(**{"kv_dtype": values["dtype"]} | values)
        rule = InvariantSplits if "batch_invariant" in need.required else SplitRule
        splits = rule(need.num_kv_heads, processors, need.max_len, split_tokens)
        return TritonAttention(need, Shape.of(need, capability), splits)

    return make
