"""`python -m paged_attn_cpu.bench_shared`: decode attention over a shared prefix, with sharing and without.

Three paths alternate in one run, layer by layer over several caches as a model does it:

    copies    every sequence has blocks of its own for the prefix: no prefix cache at all
    apart     one set of blocks in all tables, but attention is not told: every sequence reads them, mostly from caches
    shared    attention is told, and reads them once

Printed are milliseconds a layer, medians, and both ratios; results of `apart` and `shared` are compared bit by bit.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_attn_cpu.provider import CpuAttentionProvider, CpuAttentionSettings
from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE = 16
NUM_LAYERS = 4
SHAPES = [((32, 8), 128), ((9, 3), 64), ((16, 16), 128), ((12, 12), 64)]
DTYPES = ("bfloat16", "float32")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


_NO_PLUGINS: Any = None  # this provider creates nothing else


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `num` sequences with `prefix` tokens in common and `own` of their own."""

    num: int
    prefix: int
    own: int
    heads: tuple[int, int]
    head_dim: int
    dtype: str


def measure(case: Case, threads: int, seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds a layer of the three paths, medians over at least `seconds` in all."""
    need = AttentionNeed("cpu", case.dtype, case.dtype, *case.heads, case.head_dim, BLOCK_SIZE)
    backend = CpuAttentionProvider().create(
        need, CpuAttentionSettings.model_validate({"threads": threads}), _NO_PLUGINS
    )
    num_shared = case.prefix // BLOCK_SIZE
    width = -(-(case.prefix + case.own) // BLOCK_SIZE)
    ids = np.random.default_rng(0).permutation(case.num * width).astype(np.int32).reshape(case.num, width)
    joint = ids.copy()
    joint[:, :num_shared] = ids[0, :num_shared]
    rows = np.arange(case.num, dtype=np.int32)
    steps = [("copies", ids, []), ("apart", joint, []), ("shared", joint, [(rows, num_shared)])]
    plans = {name: backend.plan(_batch(case, tables, sets)) for name, tables, sets in steps}
    caches = [_cache(backend, ids.size, case.dtype) for _ in range(NUM_LAYERS)]
    dtype = getattr(torch, case.dtype)
    q, k, v = (torch.randn(case.num, heads, case.head_dim).to(dtype) for heads in (case.heads[0], *case.heads[1:] * 2))
    outs = {name: torch.empty_like(q) for name in plans}
    layer = AttentionLayer(0, case.head_dim**-0.5)
    times: dict[str, list[float]] = {name: [] for name in plans}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["shared"]) < 5:
        for name, plan in plans.items():
            begin = clock()
            for cache in caches:
                backend.forward(layer, q, k, v, cache, plan, outs[name])
            times[name].append((clock() - begin) / NUM_LAYERS)
    assert torch.equal(outs["apart"], outs["shared"]), "sharing changed a result"
    return {name: 1e3 * float(np.median(several)) for name, several in times.items()}


def _batch(case: Case, tables: Any, sets: list[Any]) -> Batch:
    length = case.prefix + case.own
    last = tables[:, (length - 1) // BLOCK_SIZE].astype(np.int64)
    return Batch(
        num_tokens=case.num,
        num_seqs=case.num,
        query_start=np.arange(case.num + 1, dtype=np.int32),
        seq_lens=np.full(case.num, length, dtype=np.int32),
        rows=np.arange(case.num, dtype=np.int32),
        tables=tables,
        positions=np.full(case.num, length - 1, dtype=np.int32),
        slots=last * BLOCK_SIZE + (length - 1) % BLOCK_SIZE,
        shared_prefixes=sets,
    )


def _cache(backend: Any, num_blocks: int, dtype: str) -> torch.Tensor:
    layout = backend.layout(num_blocks)
    cache = torch.empty(layout.shape, dtype=getattr(torch, dtype))
    return cache.copy_(torch.randn(64, *layout.shape[1:])[torch.arange(num_blocks) % 64])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each line")
    parser.add_argument("--own", type=int, default=64, help="tokens behind the prefix")
    parser.add_argument("--prefixes", type=int, nargs="+", default=[1024])
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument(
        "--clock", choices=sorted(CLOCKS), default="wall", help="cpu: sum over threads, for busy machines"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.threads} threads, {args.clock} time, milliseconds a layer\n")
    print("| sequences | prefix + own | heads | dtype | copies | apart | shared | copies / shared | apart / shared |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (heads, head_dim), dtype, num, prefix in product(SHAPES, DTYPES, args.sequences, args.prefixes):
        case = Case(num, prefix, args.own, heads, head_dim, dtype)
        ms = measure(case, args.threads, args.seconds, CLOCKS[args.clock])
        print(
            f"| {num} | {prefix} + {args.own} | {heads[0]}/{heads[1]} x {head_dim} | {dtype} "
            f"| {ms['copies']:.2f} | {ms['apart']:.2f} | {ms['shared']:.2f} "
            f"| {ms['copies'] / ms['shared']:.2f} | {ms['apart'] / ms['shared']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
