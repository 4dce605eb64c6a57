"""Attention and memory: what it reads through a table, what it writes, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from paged_conformance.cases import CACHE_TYPES, ElementType
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.scene import Scene, assert_same, cached_need, plain_need

if TYPE_CHECKING:
    from torch import Tensor

    from paged_conformance.candidate import Candidate

pytestmark = layer("behaviour")
PADDING = -1  # a slot that writes nothing


def plain_scene(attn: Candidate, lengths: list[int], block_size: int = 16) -> Scene:
    need = replace(plain_need(attn), block_size=block_size)
    return Scene(attn.create(need), need, lengths)


def changed_blocks(scene: Scene, before: Tensor) -> list[int]:
    """Blocks of the cache that differ from `before`."""
    return torch.nonzero((scene.bits() != before).any(1)).flatten().tolist()


@pytest.mark.parametrize("element", CACHE_TYPES, ids=lambda element: element.capability)
def test_nan_in_slots_nobody_owns_does_not_spread(attn: Candidate, element: ElementType) -> None:
    need = cached_need(attn, element)
    if not attn.has(element.capability):
        assert not attn.fit(need).ok, f"contract: {attn.name} accepts {element.dtype} without declaring it"
        return
    scene = Scene(attn.create(need), need, [1, 15, 17, 31, 70, 530])
    scene.poison()
    law = "slots that no position owns may hold NaN"
    scene.check(scene.spans([0] * 6), f"{law} during a prefill")
    scene.check(scene.spans([length - 1 for length in scene.lengths]), f"{law} during a decode")


@requires("sliding_window")
def test_positions_behind_a_window_have_no_weight(attn: Candidate) -> None:
    """Their blocks stay in the table; here they are overwritten, with finite numbers."""
    need = replace(plain_need(attn, ("sliding_window",)), windows=(20,))
    scene = Scene(attn.create(need), need, [70])
    windowed = replace(scene.layer, window=20)
    scene.step(scene.spans([0]), windowed)
    axis = scene.backend.layout(scene.num_blocks).block_axis
    for block in scene.blocks(0)[:3]:
        scene.cache.select(axis, int(block)).fill_(3.0)
    scene.check(scene.spans([69]), "positions that the window has left behind have no weight", windowed)


def test_sequences_may_share_blocks(attn: Candidate) -> None:
    scene = plain_scene(attn, [40, 40, 35])
    for index in (1, 2):
        scene.k[index][:32], scene.v[index][:32] = scene.k[0][:32], scene.v[0][:32]
        scene.tables[scene.rows[index], :2] = scene.tables[scene.rows[0], :2]
    scene.step([scene.spans([0, 40, 35])[0]])
    tails = scene.spans([39, 32, 32])
    scene.check(tails, "three tables may name the same two blocks")


def test_a_block_may_occur_anywhere_in_a_table(attn: Candidate) -> None:
    scene = plain_scene(attn, [64, 64])
    for row in scene.rows:
        scene.tables[row, :4] = np.sort(scene.tables[row, :4])[::-1]
    scene.check(scene.spans([0, 0]), "blocks are read in the order of the table, not of their numbers")
    scene.check(scene.spans([63, 63]), "blocks are read in the order of the table, not of their numbers")


def test_table_rows_are_found_by_number(attn: Candidate) -> None:
    scene = plain_scene(attn, [20, 33, 7])
    scene.step(scene.spans([0, 0, 0]))
    spans = [scene.spans([19, 32, 6])[index] for index in (2, 0)]
    scene.check(spans, "Batch.rows says which rows of the tables belong to the batch")


def test_a_table_that_is_a_view_is_read_by_its_strides(attn: Candidate) -> None:
    scene = plain_scene(attn, [20, 33, 70])
    wide = np.full((scene.tables.shape[0], scene.tables.shape[1] + 5), 2**31 - 1, dtype=np.int32)
    wide[:, : scene.tables.shape[1]] = scene.tables
    scene.tables = wide[:, : scene.tables.shape[1]]
    scene.check(scene.spans([0, 0, 0]), "rows of the tables may be further apart than they are long")


def test_every_key_and_value_is_written_once_and_where_its_slot_says(attn: Candidate) -> None:
    """One token after the other: each changes bytes of its own block, the same number for every token, none twice."""
    scene = plain_scene(attn, [35])
    seen = torch.zeros(scene.bits().shape, dtype=torch.bool)
    scene.cache.zero_()
    dim, heads, size = scene.need.head_dim, scene.need.num_kv_heads, scene.need.block_size
    for tensor in (*scene.k, *scene.v):
        tensor.fill_(1.0)  # no element equals what was there; equal bit patterns count equal bytes
    numbers = []
    for position in range(35):
        before = scene.bits()
        scene.step([replace(scene.spans([position])[0], count=1)])
        now = scene.bits() != before
        block = scene.slot(0, position) // size
        strangers = sorted(set(torch.nonzero(now.any(1)).flatten().tolist()) - {block})
        assert not strangers, f"position {position} belongs to block {block}, but blocks {strangers} changed too"
        again = int((now & seen).sum())
        assert not again, f"writing position {position} changed {again} bytes that hold an earlier position"
        seen |= now
        numbers.append(int(now.sum()))
    assert len(set(numbers)) == 1, f"every token writes the same number of elements; changed bytes were {numbers}"
    least = 2 * heads * dim
    assert numbers[0] >= least, f"a token has {least} elements (keys and values), only {numbers[0]} bytes changed"


def test_blocks_of_neighbours_are_not_touched(attn: Candidate) -> None:
    """One decode after the other, so that the blocks in question lie beside all kinds of others."""
    scene = plain_scene(attn, [40, 17, 33, 8, 25])
    scene.step(scene.spans([0] * 5))
    scene.k = [k + 1 for k in scene.k]
    for span in scene.spans([length - 1 for length in scene.lengths]):
        before = scene.bits()
        scene.step([span])
        touched, own = changed_blocks(scene, before), int(scene.blocks(span.sequence)[-1])
        assert touched == [own], f"a decode writes its last block ({own}) and no other; blocks {touched} changed"


def test_negative_slots_write_nothing(attn: Candidate) -> None:
    scene = plain_scene(attn, [20, 16])
    scene.step(scene.spans([0, 0]))
    scene.k = [k + 1 for k in scene.k]
    before = scene.bits()
    spans = scene.spans([10, 15])
    batch = scene.batch(spans)
    batch.slots[:] = PADDING
    scene.forward(batch, scene.inputs(spans))
    touched = changed_blocks(scene, before)
    assert not touched, f"a token with slot {PADDING} writes no keys or values; blocks {touched} changed"


def test_tokens_beside_a_negative_slot_are_written(attn: Candidate) -> None:
    scene = plain_scene(attn, [20, 16])
    spans = scene.spans([0, 0])
    batch = scene.batch(spans)
    scene.step(spans)
    scene.k[1].copy_(scene.k[1] + 1)
    batch.slots[:20] = PADDING
    scene.forward(batch, scene.inputs(spans))
    scene.check(scene.spans([19, 15]), "only tokens with a negative slot are left unwritten")


@pytest.mark.parametrize("views", ["apart", "one projection"])
def test_inputs_strided_over_the_token_axis(attn: Candidate, views: str) -> None:
    scene = plain_scene(attn, [20, 1, 33])
    spans = scene.spans([0, 0, 0])
    q, k, v = scene.inputs(spans)
    if views == "apart":
        q, k, v = (torch.stack([x, torch.full_like(x, 7.0)], dim=1)[:, 0] for x in (q, k, v))
    else:
        fused = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
        widths = [x[0].numel() for x in (q, k, v)]
        q, k, v = (part.view(len(fused), -1, scene.need.head_dim) for part in torch.split(fused, widths, dim=1))
    assert not any(x.is_contiguous() for x in (q, k, v))
    actual = scene.forward(scene.batch(spans), (q, k, v))
    law = f"q, k and v may be strided over the token axis ({views})"
    assert_same(actual.out, scene.expected(spans).out, scene, spans, law)
    scene.check(scene.spans([19, 1, 32]), f"{law}: what was written is read by a decode")


def test_an_output_strided_over_the_token_axis(attn: Candidate) -> None:
    scene = plain_scene(attn, [20, 1, 33])
    spans = scene.spans([0, 0, 0])
    q, k, v = scene.inputs(spans)
    both = torch.full((len(q), 2, *q.shape[1:]), 7.0, dtype=q.dtype, device=q.device)
    scene.backend.forward(scene.layer, q, k, v, scene.cache, scene.backend.plan(scene.batch(spans)), both[:, 0])
    assert_same(both[:, 0].cpu(), scene.expected(spans).out, scene, spans, "out may be strided over the token axis")
    assert (both[:, 1] == 7.0).all(), "out is strided: elements between its rows belong to somebody else"


def test_inputs_and_batch_are_only_read(attn: Candidate) -> None:
    scene = plain_scene(attn, [20, 1, 33])
    spans = scene.spans([5, 0, 32])
    batch, inputs = scene.batch(spans), scene.inputs(spans)
    arrays: list[Any] = [batch.query_start, batch.seq_lens, batch.rows, batch.tables, batch.positions, batch.slots]
    before: list[Any] = [array.copy() for array in arrays] + [tensor.clone() for tensor in inputs]
    scene.forward(batch, inputs)
    after: list[Any] = [*arrays, *inputs]
    names = ["query_start", "seq_lens", "rows", "tables", "positions", "slots", "q", "k", "v"]
    for name, was, now in zip(names, before, after, strict=True):
        same = np.array_equal(was, now) if isinstance(now, np.ndarray) else torch.equal(was, now)
        assert same, f"plan and forward may only read {name}; it changed"


def test_keys_and_values_are_not_confused(attn: Candidate) -> None:
    """With zero values the answer is zero whatever the keys; with zero keys it is the mean of the values."""
    scene = plain_scene(attn, [33])
    spans = scene.spans([0])
    q, k, v = scene.inputs(spans)
    zero = scene.forward(scene.batch(spans), (q, k, torch.zeros_like(v))).out
    assert (zero == 0).all(), "values of zero give zero: what is summed are the values, not the keys"
    mean = scene.forward(scene.batch(spans), (q, torch.zeros_like(k), v)).out
    count = torch.arange(1, 34)[:, None, None]
    expected = v.cpu().double().repeat_interleave(2, dim=1).cumsum(0) / count
    assert_same(mean, expected, scene, spans, "equal keys give the mean of the values seen so far")
