"""Steps of many lengths on a device that is not there: prints how many variants of each kernel Triton would compile.

A program of its own: a process that interprets kernels does not compile them. Nothing is compiled or launched here;
Triton is asked at every launch whether it knows the variant, and told that it need not bother.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import torch
import triton
from paged_attn_triton.attention import TritonAttention
from paged_attn_triton.shapes import Shape
from paged_attn_triton.splits import SplitRule
from triton.backends.compiler import GPUTarget

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch

NEED = AttentionNeed("cpu", "bfloat16", "bfloat16", 8, 2, 64, 16, token_budget=64)
LAYER = AttentionLayer(0, 0.125, window=300, softcap=20.0, rope=0)
seen: defaultdict[str, set[str]] = defaultdict(set)


class Absent:
    """The driver of a GPU of capability 9.0 that takes no launches."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def note(key: str, fn: Any, **others: Any) -> bool:
    """Called for a variant that is not compiled; True: leave it so."""
    seen[fn.name.split(".")[-1]].add(key)
    return True


def step(backend: TritonAttention, lengths: list[int], counts: list[int], table_width: int) -> None:
    """One layer of a step; what is in the arrays does not matter."""
    num = sum(counts)
    starts = np.cumsum([0, *counts]).astype(np.int32)
    tables = np.zeros((len(counts) + 3, table_width), np.int32)
    zeros = np.zeros(num, np.int32)
    rope = [(torch.zeros(num, 32), torch.zeros(num, 32))]
    rows, seq_lens = np.arange(len(counts), dtype=np.int32), np.array(lengths, np.int32)
    batch = Batch(num, len(counts), starts, seq_lens, rows, tables, zeros, zeros.astype(np.int64), rope=rope)
    fused = torch.zeros(num, 12 * 64, dtype=torch.bfloat16)
    q, k, v = (part.unflatten(1, (-1, 64)) for part in fused.split([512, 128, 128], dim=1))
    cache = torch.zeros(backend.layout(4).shape, dtype=torch.bfloat16)
    backend.forward(LAYER, q, k, v, cache, backend.plan(batch), torch.zeros(num, 8, 64, dtype=torch.bfloat16))
    backend._copy([cache] * len(counts), [cache] * len(counts), np.zeros((num, 2), np.int64))


def main() -> None:
    """Decodes and prefills of one to many sequences, of one to many tokens."""
    triton.runtime.driver.set_active(Absent())
    triton.knobs.runtime.jit_cache_hook = note
    backend = TritonAttention(NEED, Shape.of(NEED, 90), SplitRule(2, 132, 0, 256))
    for size in (1, 2, 3, 15, 16, 17, 32, 48):
        for length in (1, 2, 16, 17, 255, 256, 4096, 100_003):
            step(backend, [length] * size, [1] * size, -(-length // 16))
            step(backend, [length + size] * 2, [size, 1], -(-length // 16) + 1)
        step(backend, [40] * size, [3] * size, 5)
    print(json.dumps({name: len(keys) for name, keys in seen.items()}))


if __name__ == "__main__":
    main()
