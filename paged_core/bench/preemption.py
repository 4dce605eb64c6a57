"""`bench preemption`: what a victim costs, by its length: its blocks to the host and back, or its tokens once more."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.allocator import SwapPair
from paged_core.api.attention import Attention, AttentionNeed
from paged_core.bench.kernels.paged import empty_cache
from paged_core.bench.report import Column, Table
from paged_core.bench.speed import LOWEST_ID
from paged_core.bench.timing import measure
from paged_core.engine.assemble import locate
from paged_core.plugins import bootstrap
from paged_core.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.model import ModelSpec
    from paged_core.bench.speed import Bench
    from paged_core.engine.config import EngineConfig

LENGTHS = (16, 64, 256, 1024, 4096)


class Tiers:
    """Pools of one victim's size on the device and on the host, and the attention plugin that moves blocks."""

    def __init__(self, num_layers: int, attention: Attention, num_blocks: int) -> None:
        import torch

        layout = attention.layout(num_blocks)
        dtype = getattr(torch, layout.dtype)
        self.num_bytes = layout.bytes_per_block * num_blocks * num_layers
        self._attention = attention
        self._tiers: list[list[Tensor]] = [
            [empty_cache(layout.shape, dtype).zero_() for _ in range(num_layers)] for _ in range(2)
        ]
        scattered = np.random.default_rng(0).permutation(num_blocks).tolist()
        self._out = [SwapPair(src, dst) for src, dst in enumerate(scattered)]
        self._in = [SwapPair(dst, src) for src, dst in self._out]

    def there_and_back(self) -> None:
        """Swap everything out, and in again."""
        device, host = self._tiers
        self._attention.swap_blocks(device, host, self._out)
        self._attention.swap_blocks(host, device, self._in)


def preemption_table(bench: Bench, lengths: Sequence[int], rounds: int, seed: int) -> Table:
    """Milliseconds of both ways for victims of several lengths; lengths beyond the engine's are cut."""
    columns = (
        Column("tokens", "victim, tokens", ","),
        Column("mb", "KV MB", ".1f"),
        Column("swap_ms", "swap out and in ms", ".2f"),
        Column("recompute_ms", "recompute ms", ".1f"),
        Column("ratio", "recompute / swap", ".1f"),
        Column("gb_per_s", "swap GB/s", ".1f"),
    )
    table = Table("A victim's way out and back", columns)
    facts, settings = bench.engine.facts, bench.llm.settings
    plugins = bootstrap(settings)
    spec = locate(settings, plugins).spec
    attention: Attention = plugins.create("attn", facts.plugins["attn"], _need(spec, facts))
    random = np.random.default_rng(seed)
    most = min(facts.max_model_len, facts.num_blocks * facts.block_size) - 1
    for length in dict.fromkeys(min(length, most) for length in lengths):
        bench.say(f"a victim of {length} tokens")
        tiers = Tiers(spec.num_layers, attention, -(-length // facts.block_size))
        swap = measure(tiers.there_and_back, rounds).median
        prompts = [random.integers(LOWEST_ID, facts.vocab_size, length).tolist() for _ in range(rounds + 1)]
        again = statistics.median([_prefill(bench, prompt) for prompt in prompts][1:])
        row = (length, tiers.num_bytes / 1e6, swap * 1e3, again * 1e3, again / swap)
        table.add(*row, 2 * tiers.num_bytes / swap / 1e9)
    table.notes += [
        f"Medians of {rounds} rounds. Swap: all layers' blocks to scattered places on the host and back, through the",
        "attention plugin. Recompute: the victim's tokens alone, in chunks of the token budget, to its next token.",
    ]
    return table


def _need(spec: ModelSpec, facts: EngineConfig) -> AttentionNeed:
    return AttentionNeed(
        device=facts.device,
        dtype=facts.dtype,
        kv_dtype=facts.kv_dtype,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=facts.block_size,
        max_len=facts.max_model_len,
        max_rows=2 * facts.max_num_seqs,
        token_budget=facts.token_budget,
        cache_dir=str(cache_dir()),
    )


def _prefill(bench: Bench, prompt: Sequence[int]) -> float:
    times = bench.answer(prompt, 1)
    assert times.first_token_time is not None
    return times.first_token_time - times.arrival_time
