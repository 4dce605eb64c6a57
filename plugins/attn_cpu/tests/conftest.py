"""A plain dense oracle and a paged world to compare it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from paged_attn_cpu import CpuAttentionProvider

from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch


@dataclass
class World:
    """Sequences with known K and V, a paged cache that holds their prefixes, and the dense answer.

    sequences: (prefix length, new tokens). The cache is poisoned with NaN first; block ids are a random permutation.
    """

    sequences: list[tuple[int, int]]
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 16
    block_size: int = 4
    dtype: str = "float32"
    kv_dtype: str = "float32"
    seed: int = 0
    threads: int = 2
    bf16_pairs: bool = True
    int8_quads: bool = True
    required: frozenset[str] = frozenset()
    backend: Any = field(init=False)

    def __post_init__(self) -> None:
        self.need = AttentionNeed(
            "cpu", self.dtype, self.kv_dtype, *self.heads, self.head_dim, self.block_size, required=self.required
        )
        provider = CpuAttentionProvider()
        assert provider.probe(self.need).ok
        self.backend = provider.create(self.need, self.settings(provider), None)  # type: ignore[arg-type]
        self.data = [self._sequence(i, sum(lengths)) for i, lengths in enumerate(self.sequences)]
        self._build_tables()
        self.cache = self.new_cache(self.num_blocks)
        self._fill_prefixes()

    def settings(self, provider: Any) -> Any:
        return provider.Settings(threads=self.threads, bf16_pairs=self.bf16_pairs, int8_quads=self.int8_quads)

    def _sequence(self, index: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v of one sequence; they depend on the seed, the index and nothing else."""
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        compute = getattr(torch, self.dtype)
        shapes = [(length, self.heads[0]), (length, self.heads[1]), (length, self.heads[1])]
        return tuple(torch.randn(*s, self.head_dim, generator=generator).to(compute) for s in shapes)  # type: ignore[return-value]

    def new_cache(self, num_blocks: int) -> torch.Tensor:
        layout = self.backend.layout(num_blocks)
        assert layout.block_axis == 0
        empty = 255 if layout.dtype == "uint8" else float("nan")  # four bytes of 255 are a NaN as well
        cache = torch.full(layout.shape, empty, dtype=getattr(torch, layout.dtype))
        assert cache[0].numel() * cache.element_size() == layout.bytes_per_block
        return cache

    def _build_tables(self) -> None:
        needs = [-(-sum(lengths) // self.block_size) for lengths in self.sequences]
        self.num_blocks = sum(needs) + 3
        order = np.random.default_rng(self.seed).permutation(self.num_blocks).astype(np.int32)
        self.tables = np.full((len(needs) + 2, max(needs) + 1), 2**31 - 1, dtype=np.int32)
        self.rows = np.array([len(needs) + 1 - i for i in range(len(needs))], dtype=np.int32)
        start = 0
        for row, count in zip(self.rows, needs, strict=True):
            self.tables[row, :count] = order[start : start + count]
            start += count

    def slot(self, sequence: int, position: int) -> int:
        block = int(self.tables[self.rows[sequence], position // self.block_size])
        return block * self.block_size + position % self.block_size

    def batch(self, spans: list[tuple[int, int, int]]) -> Batch:
        """A batch of (sequence, first position, tokens)."""
        counts = [count for _, _, count in spans]
        positions = [p for _, first, count in spans for p in range(first, first + count)]
        slots = [self.slot(s, p) for s, first, count in spans for p in range(first, first + count)]
        return Batch(
            num_tokens=sum(counts),
            num_seqs=len(spans),
            query_start=np.cumsum([0, *counts]).astype(np.int32),
            seq_lens=np.array([first + count for _, first, count in spans], dtype=np.int32),
            rows=self.rows[[s for s, _, _ in spans]],
            tables=self.tables,
            positions=np.array(positions, dtype=np.int32),
            slots=np.array(slots, dtype=np.int64),
        )

    def _fill_prefixes(self) -> None:
        """Write the prefixes straight into the cache, by the documented layout; codes by the backend itself."""
        if self.kv_dtype == "uint8":
            spans = [(index, 0, prefix) for index, (prefix, _) in enumerate(self.sequences) if prefix]
            if spans:
                self.run(spans)
            return
        for index, (prefix, _) in enumerate(self.sequences):
            _, k, v = self.data[index]
            for position in range(prefix):
                block, offset = divmod(self.slot(index, position), self.block_size)
                rows = torch.zeros(2, *self.cache.shape[2:3], self.cache.shape[-1], dtype=self.cache.dtype)
                rows[0, :, : self.head_dim], rows[1, :, : self.head_dim] = k[position], v[position]
                if self.backend.keeps_cells:
                    fill_cells(self.cache[block], offset, *rows)
                else:
                    self.cache[block, :, :, offset] = rows

    def stored(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys or values as the cache keeps them, float64."""
        return coded(rows) if self.kv_dtype == "uint8" else rows.to(getattr(torch, self.kv_dtype)).double()

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        return [(i, prefix, new) for i, (prefix, new) in enumerate(self.sequences)]

    def inputs(self, spans: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        return [torch.cat([self.data[s][part][first : first + n] for s, first, n in spans]) for part in range(3)]

    def run(
        self, spans: list[tuple[int, int, int]] | None = None, layer: AttentionLayer | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One forward call over `spans` (all new tokens by default)."""
        spans = self.spans if spans is None else spans
        layer = layer or AttentionLayer(0, self.head_dim**-0.5)
        q, k, v = self.inputs(spans)
        out = torch.full_like(q, float("nan"))
        lse = self.backend.forward(layer, q, k, v, self.cache, self.backend.plan(self.batch(spans)), out)
        return out, lse

    def expected(
        self, spans: list[tuple[int, int, int]] | None = None, layer: AttentionLayer | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The dense answer in float64 from K and V as the cache stores them: out and log-sum-exp."""
        layer = layer or AttentionLayer(0, self.head_dim**-0.5)
        outs, lses = [], []
        for s, first, count in self.spans if spans is None else spans:
            k, v = (self.stored(x) for x in self.data[s][1:])
            q = self.data[s][0].double()
            out, lse = dense(q[first : first + count], k[: first + count], v[: first + count], layer)
            outs.append(out)
            lses.append(lse)
        return torch.cat(outs), torch.cat(lses)


def fill_cells(block: torch.Tensor, offset: int, k: torch.Tensor, v: torch.Tensor) -> None:
    """Write one token's rows, [kv_heads, width], into a block that consists of cells of 16 keys.

    Those of K are lines of a pair of columns by 16 keys, those of V lines of a pair of keys by 16 columns.
    """
    heads, width = k.shape
    cell, key = divmod(offset, 16)
    block[0].view(heads, -1, width // 2, 16, 2)[:, cell, :, key] = k.view(heads, width // 2, 2)
    block[1].view(heads, -1, width // 16, 8, 16, 2)[:, cell, :, key // 2, :, key % 2] = v.view(heads, width // 16, 16)


def coded(rows: torch.Tensor) -> torch.Tensor:
    """Rows as a cache of uint8 gives them back, by the formula of the contract: float64."""
    x = rows.float()
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    per_step = torch.full_like(least, 255.0) / (most - least)
    codes = ((x - least) * per_step).round().nan_to_num(0.0)
    return least.double() + ((most - least) / 255).double() * codes.double()


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of the last len(q) positions, one matrix a head."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("qhd,khd->qhk", q, k) * layer.scale
    if layer.softcap:
        logits = layer.softcap * torch.tanh(logits / layer.softcap)
    position = torch.arange(len(k) - len(q), len(k))[:, None]
    key = torch.arange(len(k))[None]
    visible = key <= position
    if layer.window:
        visible &= key > position - layer.window
    logits = logits.masked_fill(~visible[:, None], float("-inf"))
    return torch.einsum("qhk,khd->qhd", logits.softmax(-1), v), logits.logsumexp(-1)


@pytest.fixture(scope="session")
def world() -> type[World]:
    return World


TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


@pytest.fixture(scope="session")
def check() -> Any:
    """Assert that a world's forward equals the dense answer, and return what it computed."""

    def run(world: World, layer: AttentionLayer | None = None) -> torch.Tensor:
        out, _ = world.run(layer=layer)
        torch.testing.assert_close(
            out.double(), world.expected(layer=layer)[0], atol=TOLERANCE[world.dtype], rtol=TOLERANCE[world.dtype]
        )
        return out

    return run
