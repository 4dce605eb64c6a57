"""Attention against the dense oracle."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 32, 64, 128, 256])
def test_ragged_lengths_around_block_edges(world, check, dtype, block_size):
    edges = sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3})
    sequences = [(prefix, 1) for prefix in edges] + [(prefix, new) for prefix in edges for new in (2, 7)]
    check(world(sequences, block_size=block_size, dtype=dtype, kv_dtype=dtype))
