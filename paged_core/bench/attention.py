"""`bench attention`: an attention plugin alone, through its contract, beside reading keys and values at the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch
from paged_core.bench.report import Column, Table
from paged_core.bench.timing import measure
from paged_core.engine.hardware import cpu_has_bf16, kv_bytes
from paged_core.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from paged_core.api.attention import Attention, KVLayout
    from paged_core.bench.peaks import Peaks
    from paged_core.bench.timing import Measurement
    from paged_core.plugins import Plugins

ROTATION = 128 << 20
"""Bytes of keys and values that layers take turns with, so that a call finds its own in memory."""
_LEAST_SAMPLE_S = 5e-3
_MOST_LAYERS = 512


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, key-value heads, and elements of a head."""

    query: int
    kv: int
    size: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} x {self.size}"


@dataclass(frozen=True, slots=True)
class Case:
    """A step: `sequences`, each computing its last `new` tokens of `context` in all."""

    heads: Heads
    sequences: int
    context: int
    new: int = 1

    @property
    def kind(self) -> str:
        """decode, or prefill."""
        return "decode" if self.new == 1 else "prefill"

    def kv_bytes(self, kv_dtype: str) -> int:
        """Keys and values that the step attends to, each counted once, with what scales them."""
        element_bytes, row_bytes = kv_bytes(kv_dtype)
        return 2 * self.sequences * self.context * self.heads.kv * (self.heads.size * element_bytes + row_bytes)

    @property
    def ops(self) -> int:
        """Operations of both products, causal pairs only."""
        pairs = self.new * self.context - self.new * (self.new - 1) // 2
        return 4 * self.sequences * pairs * self.heads.query * self.heads.size


LLAMA_8B, SMOLLM2 = Heads(32, 8, 128), Heads(9, 3, 64)
DECODES = (
    Case(LLAMA_8B, 32, 1024),
    *(Case(SMOLLM2, num, context) for num in (1, 16, 64) for context in (128, 512, 1024, 2048, 4096)),
)
PREFILLS = tuple(Case(heads, 1, length, length) for heads in (SMOLLM2, LLAMA_8B) for length in (512, 2048))
QUICK = (Case(SMOLLM2, 2, 64), Case(SMOLLM2, 1, 64, 64))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which plugin (a name, or auto), block size, element types of the KV cache, and how to measure."""

    plugin: str = "auto"
    block_size: int = 16
    kv_dtypes: tuple[str, ...] = ("bfloat16", "float32")
    rounds: int = 5
    clock: str = "wall"


def activations(kv_dtype: str) -> str:
    """Element type of the queries beside a cache of this one: its own, or the processor's own for codes."""
    if kv_dtype != "uint8":
        return kv_dtype
    return "bfloat16" if cpu_has_bf16() else "float32"


def batch_of(case: Case, block_size: int) -> Batch:
    """The step as attention sees it: every sequence has blocks of its own, scattered over the pool."""
    width = -(-case.context // block_size)
    ids = np.random.default_rng(0).permutation(case.sequences * width)
    tables = ids.astype(np.int32).reshape(case.sequences, width)
    new = np.arange(case.context - case.new, case.context, dtype=np.int32)
    block, offset = np.divmod(new, block_size)
    return Batch(
        num_tokens=case.sequences * case.new,
        num_seqs=case.sequences,
        query_start=np.arange(case.sequences + 1, dtype=np.int32) * case.new,
        seq_lens=np.full(case.sequences, case.context, dtype=np.int32),
        rows=np.arange(case.sequences, dtype=np.int32),
        tables=tables,
        positions=np.tile(new, case.sequences),
        slots=(tables[:, block].astype(np.int64) * block_size + offset).ravel(),
    )


class Layers:
    """One plugin's backend and one case, with caches of so many layers that they do not fit a cache of the machine."""

    def __init__(self, backend: Attention, case: Case, block_size: int, dtype: str) -> None:
        batch, element = batch_of(case, block_size), getattr(torch, dtype)
        layout = backend.layout(batch.tables.size)
        count = min(_MOST_LAYERS, -(-ROTATION // (layout.bytes_per_block * batch.tables.size)))
        content = _noise(layout)
        self.caches = [content.clone() for _ in range(count)]
        self._backend, self._plan = backend, backend.plan(batch)
        heads = case.heads
        shapes = [(batch.num_tokens, num, heads.size) for num in (heads.query, heads.kv, heads.kv)]
        q, k, v = (torch.randn(shape).to(element) for shape in shapes)
        self.inputs = (q, k, v)
        self._out = torch.empty_like(self.inputs[0])
        self._layer = AttentionLayer(0, heads.size**-0.5)

    def run(self) -> Tensor:
        """Every layer once; what the last one gave."""
        for cache in self.caches:
            self._backend.forward(self._layer, *self.inputs, cache, self._plan, self._out)
        return self._out


def _noise(layout: KVLayout) -> Tensor:
    """Content of a cache. Of bytes, any four are a float32 between 1e-19 and 1: they may scale the others."""
    if layout.dtype == "uint8":
        return torch.randint(32, 64, layout.shape, dtype=torch.uint8)
    return torch.randn(layout.shape).to(getattr(torch, layout.dtype))


@torch.inference_mode()
def read(plugins: Plugins, case: Case, kv_dtype: str, choice: Choice) -> tuple[str, Measurement]:
    """The plugin's name, and seconds a layer. `activations` says which element type the queries have.

    Raises what selecting a plugin raises when none fits.
    """
    heads, dtype = case.heads, activations(kv_dtype)
    need = AttentionNeed(
        device="cpu",
        dtype=dtype,
        kv_dtype=kv_dtype,
        num_heads=heads.query,
        num_kv_heads=heads.kv,
        head_dim=heads.size,
        block_size=choice.block_size,
        max_len=case.context,
        max_rows=case.sequences,
        token_budget=case.sequences * case.new,
        cache_dir=str(cache_dir()),
    )
    name = plugins.select("attn", choice.plugin, need).provider.name
    layers = Layers(plugins.create("attn", name, need), case, choice.block_size, dtype)
    once = measure(layers.run, 1, clock=choice.clock).median
    sweeps = max(1, min(100, round(_LEAST_SAMPLE_S / max(once, 1e-6))))
    seconds = measure(lambda: [layers.run() for _ in range(sweeps)], choice.rounds, warmups=0, clock=choice.clock)
    return name, seconds.each(sweeps * len(layers.caches))


def attention_tables(
    plugins: Plugins, cases: Iterable[Case], choice: Choice, peaks: Peaks, say: Callable[[str], None]
) -> list[Table]:
    """Decodes by the bytes they read, prefills by the operations they do; both as a share of the floor."""
    lead = (
        Column("sequences", "sequences", ","),
        Column("context", "context", ","),
        Column("heads", "heads"),
        Column("kv_dtype", "KV"),
        Column("us", "us / layer", ",.0f"),
    )
    read_rate, rate = Column("kv_gb_per_s", "KV GB/s", ".1f"), Column("gop_per_s", "Gop/s", ".0f")
    tail = (
        Column("read_share", "of read peak", ".0%"),
        Column("share", "of floor", ".0%"),
        Column("spread", "spread", ".0%"),
        Column("plugin", "plugin"),
    )
    tables = {kind: Table(f"Attention, {kind}", (*lead, read_rate, rate, *tail)) for kind in ("decode", "prefill")}
    for case in cases:
        for kv_dtype in choice.kv_dtypes:
            say(f"{case.kind}, {case.sequences} x {case.context}, {case.heads}, {kv_dtype}")
            name, seconds = read(plugins, case, kv_dtype, choice)
            taken, num_bytes = seconds.median, case.kv_bytes(kv_dtype)
            read_s = num_bytes / peaks.read_bytes
            floor = max(read_s, case.ops / peaks.rate(activations(kv_dtype)))
            row = (case.sequences, case.context, str(case.heads), kv_dtype, taken * 1e6, num_bytes / taken / 1e9)
            tables[case.kind].add(*row, case.ops / taken / 1e9, read_s / taken, floor / taken, seconds.spread, name)
    found = [table for table in tables.values() if table.rows]
    for table in found:
        table.notes += _notes(choice)
    return found


def _notes(choice: Choice) -> Sequence[str]:
    return (
        f"Medians of {choice.rounds} rounds, {choice.clock} time; blocks of {choice.block_size}, scattered.",
        f"Layers take turns over {ROTATION >> 20} MiB of keys and values. Floor: those of one layer read once at the",
        "peak of reading, or both products at the peak of the queries' element type, whichever takes longer.",
        "Beside a cache of uint8, queries are bfloat16 where the processor has it; its bytes include steps and minima.",
    )
