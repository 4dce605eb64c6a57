"""Attention under `graphs`: decodes whose launches were recorded once, padding, and arrays that stay where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.scene import Scene, Span, assert_same, plain_need
from paged_core.api.batch import Batch, DeviceBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")
BUCKET = 6
LENGTHS = [1, 16, 17, 40, 300, 1100]


class Stage:
    """Buffers of one bucket: what an executor fills before each step, and where the queries and the answers lie."""

    def __init__(self, scene: Scene, bucket: int) -> None:
        need, device = scene.need, scene.need.device
        self.scene = scene
        self.bucket = bucket
        self.q = torch.zeros(bucket, need.num_heads, need.head_dim, dtype=getattr(torch, need.dtype), device=device)
        self.k, self.v = (self.q.new_zeros(bucket, need.num_kv_heads, need.head_dim) for _ in range(2))
        self.out = torch.full_like(self.q, torch.nan)
        self._arrays: DeviceBatch | None = None

    def plan(self, sequences: Sequence[int]) -> Any:
        """Plan the last token of each of `sequences`, and padding up to the bucket."""
        spans = self._spans(sequences)
        batch = padded(self.scene.batch(spans), self.bucket)
        for buffer, rows in zip((self.q, self.k, self.v), self.scene.inputs(spans), strict=True):
            buffer[: len(spans)] = rows
        batch.on_device = self._filled(batch)
        return self.scene.backend.plan(batch)

    def forward(self, plan: Any) -> None:
        """One layer, from the buffers into `out`."""
        self.out.fill_(torch.nan)
        self.scene.backend.forward(self.scene.layer, self.q, self.k, self.v, self.scene.cache, plan, self.out)

    def record(self, plan: Any) -> Callable[[], None]:
        """What replays `forward` with this plan: a CUDA graph, or `forward` again, which reads the same buffers."""
        if self.scene.need.device != "cuda":
            return lambda: self.forward(plan)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.forward(plan)
        return graph.replay

    def check(self, sequences: Sequence[int], law: str) -> None:
        """`out` against the oracle; padding answers with zeros."""
        spans, out = self._spans(sequences), self.out.cpu()
        assert_same(out[: len(spans)], self.scene.expected(spans).out, self.scene, spans, law)
        assert not out[len(spans) :].any(), f"rows of padding are zero: got {out[len(spans) :].flatten()[:4].tolist()}"

    def _spans(self, sequences: Sequence[int]) -> list[Span]:
        return [Span(i, self.scene.lengths[i] - 1, 1) for i in sequences]

    def _filled(self, batch: Batch) -> DeviceBatch:
        tensors = {
            name: torch.tensor(getattr(batch, name), device=self.scene.need.device)
            for name in ("query_start", "seq_lens", "rows", "tables", "positions", "slots")
        }
        if self._arrays is None:
            self._arrays = DeviceBatch(**tensors)
        for name, tensor in tensors.items():
            getattr(self._arrays, name).copy_(tensor)
        return self._arrays


def padded(batch: Batch, bucket: int) -> Batch:
    """The batch with sequences of length 0 behind it, whose row of the table belongs to somebody."""
    more = bucket - batch.num_seqs
    return replace(
        batch,
        num_tokens=bucket,
        num_seqs=bucket,
        query_start=np.arange(bucket + 1, dtype=np.int32),
        seq_lens=np.pad(batch.seq_lens, (0, more)),
        rows=np.pad(batch.rows, (0, more), constant_values=int(batch.rows[0])),
        positions=np.pad(batch.positions, (0, more)),
        slots=np.pad(batch.slots, (0, more), constant_values=-1),
    )


def prefilled(attn: Candidate, *required: str) -> Scene:
    """All but the last token of each sequence is in the cache."""
    need = plain_need(attn, ("graphs", *required))
    scene = Scene(attn.create(need), need, LENGTHS)
    scene.step([Span(i, 0, length - 1) for i, length in enumerate(LENGTHS) if length > 1])
    return scene


@requires("graphs")
@pytest.mark.parametrize("sequences", [[5], [0, 3], [4, 1, 0, 5, 2], [0, 1, 2, 3, 4, 5]], ids=lambda s: f"{len(s)}of6")
def test_padding_is_harmless(attn: Candidate, sequences: list[int]) -> None:
    stage = Stage(prefilled(attn), BUCKET)
    before = stage.scene.bits()
    stage.forward(stage.plan(sequences))
    stage.check(sequences, f"{len(sequences)} decodes and {BUCKET - len(sequences)} rows of padding equal the oracle")
    changed = torch.nonzero((stage.scene.bits() != before).any(1)).flatten().tolist()
    written = {int(stage.scene.blocks(i)[-1]) for i in sequences}
    assert set(changed) == written, f"blocks {changed} changed; the decodes write to {sorted(written)}"


@requires("graphs")
def test_what_was_launched_for_one_batch_serves_the_next(attn: Candidate) -> None:
    stage = Stage(prefilled(attn), BUCKET)
    stage.forward(stage.plan([1, 2]))  # backends may make scratch memory at their first batch of a size
    replay = stage.record(stage.plan([1, 2]))
    for sequences in ([5, 0, 3], [4], [2, 5, 1, 0, 3, 4]):
        stage.plan(sequences)
        replay()
        stage.check(sequences, f"launches of an earlier batch of {BUCKET} rows serve sequences {sequences}")


@requires("graphs")
def test_batches_between_do_not_disturb(attn: Candidate) -> None:
    """A prefill, and decodes of another size, run between two replays: scratch memory must not move."""
    stage = Stage(prefilled(attn), BUCKET)
    stage.forward(stage.plan([0, 1]))
    replay = stage.record(stage.plan([0, 1]))
    stage.scene.step([Span(4, 0, 300), Span(5, 0, 1100)])
    other = Stage(stage.scene, 2)
    other.forward(other.plan([3, 2]))
    other.check([3, 2], "a batch of another size equals the oracle")
    stage.plan([5, 4, 3])
    replay()
    stage.check([5, 4, 3], "launches recorded before other batches still serve")
