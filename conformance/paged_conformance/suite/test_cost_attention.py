"""What attention costs: a decode step beside the oracle and beside the memory it must read, in the same run.

Reported, never failed on: a machine may be busy. What is measured must be right, though.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from paged_conformance.marks import layer
from paged_conformance.oracles.scene import Scene, plain_need

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_conformance.candidate import Candidate

pytestmark = layer("cost")
REPEATS = 5
FLUSH_BYTES = 1 << 27  # more than any cache in front of the memory that is to be measured


def best_seconds(work: Callable[[], object], device: str) -> float:
    """The shortest of a few runs, each from cold caches; the device is idle before and after each."""
    flush = torch.zeros(FLUSH_BYTES // 4, device=device)
    times = []
    for _ in range(REPEATS):
        flush.add_(1.0)
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def test_cost_of_decode_attention(attn: Candidate, record_property: Callable[[str, object], None]) -> None:
    """16 sequences of 512 tokens decode: time beside the oracle's, and beside that of reading as many bytes."""
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [512] * 16)
    scene.step(scene.spans([0] * 16))
    spans = scene.spans([511] * 16)
    scene.check(spans, "what is measured is right")
    plan, inputs = scene.backend.plan(scene.batch(spans)), scene.inputs(spans)
    backend_s = best_seconds(lambda: scene.run_plan(plan, inputs), attn.device)
    oracle_s = best_seconds(lambda: scene.expected(spans), "cpu")
    read_bytes = 16 * 512 * 2 * need.num_kv_heads * need.head_dim * scene.cache.element_size()
    probe = torch.ones(read_bytes // 4, device=attn.device)
    probe_s = best_seconds(probe.sum, attn.device)
    record_property("decode_seconds_per_oracle_second", round(backend_s / oracle_s, 4))
    record_property("decode_share_of_read_bandwidth", round(probe_s / backend_s, 4))
