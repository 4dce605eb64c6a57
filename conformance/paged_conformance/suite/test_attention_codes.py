"""Attention with a cache of uint8: what codes are made of, how fine they are, and that they travel with their block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from paged_conformance.cases import CODES
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.scene import Scene, Span, assert_same, cached_need
from paged_core.api.allocator import BlockCopy, SwapPair

if TYPE_CHECKING:
    from torch import Tensor

    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")
LENGTHS = [1, 16, 40, 70]
FINEST = 1e-6  # relative to the largest element: what float32 arithmetic may add to half a step


def scene_of(attn: Candidate, lengths: list[int], required: tuple[str, ...] = ()) -> Scene:
    if attn.has("batch_invariant"):
        required = (*required, "batch_invariant")
    need = cached_need(attn, CODES, required)
    return Scene(attn.create(need), need, lengths)


def in_chunks(scene: Scene, size: int) -> None:
    """Compute everything, `size` tokens of each sequence a step."""
    for first in range(0, max(scene.lengths), size):
        spans = [Span(i, first, min(size, n - first)) for i, n in enumerate(scene.lengths) if n > first]
        scene.step(spans)


@requires("u8")
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_what_is_stored_depends_on_the_row_alone(attn: Candidate, chunk: int) -> None:
    """The cache is the same to the bit however a prompt was cut, and whoever was computed beside it."""
    whole, cut = scene_of(attn, LENGTHS), scene_of(attn, LENGTHS)
    whole.step(whole.spans([0] * len(LENGTHS)))
    in_chunks(cut, chunk)
    wrong = torch.nonzero((whole.bits() != cut.bits()).any(1)).flatten().tolist()
    assert not wrong, f"chunks of {chunk} tokens leave other bytes in blocks {wrong} than a whole prefill"


@requires("u8")
@pytest.mark.parametrize("factor", [1.0, 1e-4, 1e4], ids="x{:g}".format)
def test_codes_are_as_fine_as_the_reference(attn: Candidate, factor: float) -> None:
    """A sequence of one token answers with its value: off by at most half of the row's own step."""
    scene = scene_of(attn, [1] * 40)
    sizes = factor * 10.0 ** torch.linspace(-2, 2, 40)
    scene.v = [v * size for v, size in zip(scene.v, sizes, strict=True)]
    for v in scene.v:
        v[:, 1] += 3 * v[:, 1].abs().max()  # one KV head lies far from zero, the other around it
    out = scene.step(scene.spans([0] * 40)).out.double()
    value = torch.cat(scene.v).double()
    step = (value.amax(-1) - value.amin(-1)) / 255
    allowed = step / 2 + FINEST * value.abs().amax(-1)
    group = scene.need.num_heads // scene.need.num_kv_heads
    error = (out - value.repeat_interleave(group, 1)).abs().amax(-1)
    excess = (error / allowed.repeat_interleave(group, 1)).max().item()
    assert excess <= 1, f"a value read back is {excess:.3g} times as far off as half a step of its row allows"


@requires("u8")
def test_equal_elements_are_exact(attn: Candidate) -> None:
    """A row of one number has no step; zeros stay zeros."""
    scene = scene_of(attn, [3, 1, 20])
    for index, number in enumerate((0.0, -1.5, 1e-30)):
        scene.v[index].fill_(number)
    spans = scene.spans([0, 0, 0])
    out = scene.step(spans).out
    wanted = torch.cat([torch.full_like(scene.q[i], number) for i, number in enumerate((0.0, -1.5, 1e-30))])
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=0, msg="rows of equal elements are read back as they were")


@requires("u8")
def test_a_later_row_leaves_the_codes_of_earlier_ones_alone(attn: Candidate) -> None:
    """Nothing is scaled by the block: a huge token beside a small one changes no bit of what was read before."""
    scene = scene_of(attn, [8])
    scene.k[0][7] *= 1e6
    scene.v[0][7] *= 1e6
    before = scene.step([Span(0, 0, 7)]).out
    scene.step([Span(0, 7, 1)])
    batch = scene.batch([Span(0, 0, 7)])
    batch.slots[:] = -1
    after = scene.forward(batch, scene.inputs([Span(0, 0, 7)])).out
    assert torch.equal(before, after), "a token written to a block changed what its other tokens are read as"


def assert_equal(actual: Tensor, expected: Tensor, scene: Scene, spans: list[Span], law: str) -> None:
    """Bit for bit where batch_invariant is declared."""
    if "batch_invariant" in scene.need.required:
        assert torch.equal(actual, expected), f"{law}, bit for bit (batch_invariant)"
    else:
        assert_same(actual, expected.double(), scene, spans, law)


@requires("u8")
def test_neighbours_do_not_change_what_codes_give(attn: Candidate) -> None:
    alone, together = scene_of(attn, [700]), scene_of(attn, [700, 1, 33, 530])
    for scene in (alone, together):
        scene.step([Span(0, 0, 699)])
    own = alone.spans([699])
    spans = together.spans([699, 0, 10, 529])
    law = "neighbours do not change a result that was read from codes"
    assert_equal(together.step(spans).out[:1], alone.step(own).out, alone, own, law)


@requires("u8")
@pytest.mark.parametrize("num_blocks", [4, 40])
def test_codes_of_a_shared_prefix_are_read_as_ones_own(attn: Candidate, num_blocks: int) -> None:
    common = num_blocks * 16
    scene = scene_of(attn, [common + own for own in (1, 30, 70)])
    for index in (1, 2):
        scene.tables[scene.rows[index], :num_blocks] = scene.blocks(0)[:num_blocks]
        for each in (scene.k, scene.v):
            each[index][:common] = each[0][:common]
    scene.step(scene.spans([0, common, common]))
    spans = scene.spans([length - 1 for length in scene.lengths])
    scene.step(spans)
    alone = torch.cat([scene.step([span]).out for span in spans])
    told = replace(scene.batch(spans), shared_prefixes=[(scene.rows, num_blocks)])
    actual = scene.forward(told, scene.inputs(spans)).out
    assert_equal(actual, alone, scene, spans, "a shared prefix in codes changes no result")
    scene.check(spans, "a shared prefix in codes is read as the oracle does")


@requires("u8")
def test_codes_travel_with_a_copied_block(attn: Candidate) -> None:
    scene = scene_of(attn, [40])
    scene.step([Span(0, 0, 39)])
    expected = scene.step([Span(0, 39, 1)]).out
    source = int(scene.blocks(0)[1])
    target = next(block for block in range(scene.num_blocks) if block not in scene.blocks(0))
    scene.backend.copy_blocks([scene.cache], [BlockCopy(source, target)])
    scene.tables[scene.rows[0], 1] = target
    law = "a copied block is read like its source: what scales its codes was copied with it"
    assert_equal(scene.step([Span(0, 39, 1)]).out, expected, scene, [Span(0, 39, 1)], law)


@requires("u8", "swap")
def test_codes_travel_with_a_swapped_block(attn: Candidate) -> None:
    scene = scene_of(attn, [40, 60], ("swap",))
    scene.step([Span(0, 0, 39)])
    expected = scene.step([Span(0, 39, 1)]).out
    host = scene.new_cache(3).cpu()
    old, new = scene.blocks(0).tolist(), scene.blocks(1)[:3].tolist()
    scene.backend.swap_blocks([scene.cache], [host], [SwapPair(src, dst) for dst, src in enumerate(old)])
    scene.poison()
    scene.backend.swap_blocks([host], [scene.cache], [SwapPair(src, dst) for src, dst in enumerate(new)])
    scene.tables[scene.rows[0], :3] = new
    law = "a swapped block is read as before: what scales its codes went with it"
    assert_equal(scene.step([Span(0, 39, 1)]).out, expected, scene, [Span(0, 39, 1)], law)


@requires("u8", "sliding_window", "softcap")
def test_window_and_softcap_over_codes(attn: Candidate) -> None:
    need = replace(cached_need(attn, CODES, ("sliding_window", "softcap")), softcap=5.0, windows=(12,))
    scene = Scene(attn.create(need), need, [1, 17, 40, 600])
    windowed = replace(scene.layer, window=12)
    scene.check(scene.spans([0] * 4), "window and soft-cap mean the same over codes", windowed)
    scene.check(scene.spans([0, 16, 39, 599]), "window and soft-cap mean the same over codes", windowed)


@requires("u8")
def test_nan_of_a_row_stays_in_its_sequence(attn: Candidate) -> None:
    scene = scene_of(attn, [20, 33, 1])
    spans = scene.spans([0, 0, 0])
    expected = scene.expected(spans).out
    scene.k[1][5, 0, 3] = float("nan")
    scene.v[1][5, 1, 3] = float("inf")
    out = scene.step(spans).out
    assert_same(out[:20], expected[:20], scene, spans[:1], "a sequence before one with NaN in a row")
    assert_same(out[53:], expected[53:], scene, spans[2:], "a sequence behind one with NaN in a row")
    assert not out[25:53].isfinite().all(), "a NaN among keys or values must not become a number"
