"""A paged world for attention backends: sequences with known q, k, v in a pool whose blocks are dealt at random.

Everything goes through the contract: keys and values enter the cache by `forward`, so any private layout will do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_conformance.cases import CACHE_TYPES, CODES, E4M3, ELEMENT_TYPES, NARROW_TYPES, ElementType
from paged_conformance.oracles.attention import attend, coded, narrowed, rope_table, rotate
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_conformance.candidate import Candidate

NO_BLOCK = 2**31 - 1  # in table entries that no sequence owns: reading a block through one cannot go unnoticed


@dataclass(frozen=True, slots=True)
class Span:
    """Positions first .. first + count - 1 of a sequence, computed in one step."""

    sequence: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Output:
    """What a step gave, on the CPU: out [tokens, heads, head_dim]; lse [tokens, heads] if it was required."""

    out: Tensor
    lse: Tensor | None


def element_types(attn: Candidate) -> list[ElementType]:
    """The element types of activations that a backend declares, most precise first."""
    return [element for element in ELEMENT_TYPES if attn.has(element.capability)]


def cache_types(attn: Candidate) -> list[ElementType]:
    """The element types of caches that a backend declares, most precise first."""
    return [element for element in CACHE_TYPES if attn.has(element.capability)]


def cached_need(attn: Candidate, element: ElementType, required: tuple[str, ...] = ()) -> AttentionNeed:
    """`plain_need` with a cache of one element type, and activations of the same unless it is a narrow one."""
    need = plain_need(attn, required)
    return replace(need, dtype=need.dtype if element in NARROW_TYPES else element.dtype, kv_dtype=element.dtype)


def plain_need(attn: Candidate, required: tuple[str, ...] = ()) -> AttentionNeed:
    """A need that every backend must fit: mandatory shapes, the most precise element type it declares."""
    declared = element_types(attn)
    assert declared, f"contract: {attn.name} declares none of the element types fp32, bf16, fp16"
    dtype = declared[0].dtype
    need = AttentionNeed(attn.device, dtype, dtype, 4, 2, 64, 16, max_len=8192, max_rows=64, token_budget=8192)
    return replace(need, required=frozenset(required))


class Scene:
    """Sequences of known `lengths` in a pool of permuted blocks, three of which nobody owns.

    q, k, v: one tensor a sequence, [length, heads, head_dim], in the need's dtype on the CPU; they depend on the
    sequence's index and the seed only. The cache starts as finite noise; `poison` replaces that.
    """

    def __init__(self, backend: Attention, need: AttentionNeed, lengths: Sequence[int], seed: int = 0) -> None:
        self.backend = backend
        self.need = need
        self.lengths = tuple(lengths)
        self.rotary_dim = 0  # > 0: batches carry the tables of one rotary embedding
        self.layer = AttentionLayer(0, need.head_dim**-0.5, softcap=need.softcap)
        generators = [torch.Generator().manual_seed(1000 * seed + index) for index in range(len(lengths))]
        dtype = getattr(torch, need.dtype)
        self.q, self.k, self.v = (
            [
                torch.randn(n, heads, need.head_dim, generator=g).to(dtype)
                for n, g in zip(lengths, generators, strict=True)
            ]
            for heads in (need.num_heads, need.num_kv_heads, need.num_kv_heads)
        )
        self.num_blocks = self._deal(np.random.default_rng(seed))
        self.cache = self.new_cache(self.num_blocks)

    def _deal(self, random: np.random.Generator) -> int:
        """Tables of permuted blocks, in rows of descending number between rows that are not used."""
        counts = [-(-length // self.need.block_size) for length in self.lengths]
        order = iter(random.permutation(sum(counts) + 3))
        self.tables = np.full((len(counts) + 2, max(counts, default=0) + 1), NO_BLOCK, dtype=np.int32)
        self.rows = np.arange(len(counts), 0, -1, dtype=np.int32)
        for row, count in zip(self.rows, counts, strict=True):
            self.tables[row, :count] = list(itertools.islice(order, count))
        return sum(counts) + 3

    def new_cache(self, num_blocks: int, seed: int = 7) -> Tensor:
        """One layer's cache, of finite noise."""
        layout, generator = self.backend.layout(num_blocks), torch.Generator().manual_seed(seed)
        if layout.dtype == CODES.dtype:  # any four bytes below 64 are a small float32
            noise = torch.randint(0, 64, layout.shape, generator=generator)
        else:
            noise = torch.randn(layout.shape, generator=generator)
        return noise.to(dtype=getattr(torch, layout.dtype), device=self.need.device)

    def poison(self) -> None:
        """NaN in every slot. Bytes are all ones, which any float they belong to reads as NaN."""
        self.cache.fill_(255 if self.cache.dtype == torch.uint8 else float("nan"))

    def bits(self) -> Tensor:
        """The cache's bits now, uint8 [blocks, bytes of a block]."""
        return block_bytes(self.cache, self.backend.layout(self.num_blocks).block_axis)

    def slot(self, sequence: int, position: int) -> int:
        """Where the keys and values of a position live."""
        block, offset = divmod(position, self.need.block_size)
        return int(self.tables[self.rows[sequence], block]) * self.need.block_size + offset

    def blocks(self, sequence: int) -> NDArray[np.int32]:
        """The blocks of a sequence, in order."""
        return self.tables[self.rows[sequence], : -(-self.lengths[sequence] // self.need.block_size)]

    def spans(self, prefixes: Sequence[int]) -> list[Span]:
        """What is left to compute behind a prefix of each sequence; sequences without a rest are left out."""
        pairs = enumerate(zip(prefixes, self.lengths, strict=True))
        return [Span(index, prefix, length - prefix) for index, (prefix, length) in pairs if length > prefix]

    def batch(self, spans: Sequence[Span]) -> Batch:
        """The step that computes `spans`, as the runner would state it."""
        counts = [span.count for span in spans]
        where = [(s.sequence, position) for s in spans for position in range(s.first, s.first + s.count)]
        positions = np.array([position for _, position in where], dtype=np.int32)
        batch = Batch(
            num_tokens=len(where),
            num_seqs=len(spans),
            query_start=np.cumsum([0, *counts]).astype(np.int32),
            seq_lens=np.array([span.first + span.count for span in spans], dtype=np.int32),
            rows=self.rows[[span.sequence for span in spans]],
            tables=self.tables,
            positions=positions,
            slots=np.array([self.slot(*each) for each in where], dtype=np.int64),
        )
        if self.rotary_dim:
            cos, sin = rope_table(torch.from_numpy(positions), self.rotary_dim)
            batch.rope = [(cos.to(self.need.device), sin.to(self.need.device))]
        return batch

    def inputs(self, spans: Sequence[Span]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of `spans` as one flat batch on the device."""
        q, k, v = (
            torch.cat([each[s.sequence][s.first : s.first + s.count] for s in spans]).to(self.need.device)
            for each in (self.q, self.k, self.v)
        )
        return q, k, v

    def step(self, spans: Sequence[Span], layer: AttentionLayer | None = None) -> Output:
        """Compute `spans` in one step."""
        return self.forward(self.batch(spans), self.inputs(spans), layer)

    def forward(
        self, batch: Batch, inputs: tuple[Tensor, Tensor, Tensor], layer: AttentionLayer | None = None
    ) -> Output:
        """Plan a batch and run one layer of it."""
        return self.run_plan(self.backend.plan(batch), inputs, layer)

    def run_plan(self, plan: Any, inputs: tuple[Tensor, Tensor, Tensor], layer: AttentionLayer | None = None) -> Output:
        """Run one layer of a planned step; `out` starts as NaN, so that nothing may be left unwritten."""
        q, k, v = inputs
        out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
        lse = self.backend.forward(layer or self.layer, q, k, v, self.cache, plan, out)
        return Output(out.cpu(), None if lse is None else lse.cpu())

    def expected(self, spans: Sequence[Span], layer: AttentionLayer | None = None) -> Output:
        """The oracle's answer, from keys and values as the cache stores them."""
        layer = layer or self.layer
        answers = []
        for span in spans:
            sequence, first, stop = span.sequence, span.first, span.first + span.count
            q, k = self.q[sequence][:stop], self.k[sequence][:stop]
            if self.rotary_dim and layer.rope >= 0:
                cos, sin = rope_table(torch.arange(stop), self.rotary_dim)
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            k, v = self.stored(k, layer.k_scale), self.stored(self.v[sequence][:stop], layer.v_scale)
            answers.append(attend(q[first:], k, v, layer))
        return Output(torch.cat([out for out, _ in answers]), torch.cat([lse for _, lse in answers]))

    def stored(self, rows: Tensor, scale: float | tuple[float, ...] = 1.0) -> Tensor:
        """Keys or values [tokens, kv_heads, head_dim] as the cache gives them back."""
        if self.need.kv_dtype == E4M3.dtype:
            return narrowed(rows, scale)
        return coded(rows) if self.need.kv_dtype == CODES.dtype else rows.to(getattr(torch, self.need.kv_dtype))

    def check(self, spans: Sequence[Span], law: str, layer: AttentionLayer | None = None) -> Output:
        """Compute `spans` and compare with the oracle; returns what was computed."""
        actual, expected = self.step(spans, layer), self.expected(spans, layer)
        assert_same(actual.out, expected.out, self, spans, law)
        if actual.lse is not None:
            assert expected.lse is not None
            assert_same(actual.lse, expected.lse, self, spans, f"{law} (log-sum-exp)")
        return actual


def block_bytes(cache: Tensor, block_axis: int) -> Tensor:
    """A cache's bits, a copy on the CPU, uint8 [blocks, bytes of a block]: comparable although NaN != NaN."""
    blocks = cache.detach().cpu().movedim(block_axis, 0).contiguous()
    return blocks.view(torch.uint8).reshape(len(blocks), -1).clone()


def tolerance(need: AttentionNeed) -> ElementType:
    """The coarser of the two element types of a need decides."""
    return max((e for e in CACHE_TYPES if e.dtype in (need.dtype, need.kv_dtype)), key=lambda e: e.absolute)


def assert_same(actual: Tensor, expected: Tensor, scene: Scene, spans: Sequence[Span], law: str) -> None:
    """Within the tolerance of the element type; else the shortest span that is wrong is shown. NaN is never right."""
    element = tolerance(scene.need)
    error = (actual.double() - expected).abs()
    wrong = ~(error <= element.absolute + element.relative * expected.abs())
    if not wrong.any():
        return
    starts = itertools.accumulate((span.count for span in spans), initial=0)
    bad = [
        (s.first + s.count, s, start)
        for s, start in zip(spans, starts, strict=False)
        if wrong[start : start + s.count].any()
    ]
    _, span, start = min(bad, key=lambda each: each[0])
    here = torch.nonzero(wrong[start : start + span.count])[0].tolist()
    place = (start + here[0], *here[1:])
    need = scene.need
    raise AssertionError(
        f"{law}: {need.dtype} (cache {need.kv_dtype}), {need.num_heads}/{need.num_kv_heads} heads of {need.head_dim}, "
        f"blocks of {need.block_size}; the smallest of {len(bad)} wrong sequences (of {len(spans)}) computes "
        f"positions {span.first}..{span.first + span.count - 1}: position {span.first + here[0]}, head and dimension "
        f"{here[1:]}: got {actual[place].item():.6g}, the oracle says {expected[place].item():.6g} "
        f"(allowed error {element.absolute:g} + {element.relative:g} relative)"
    )
