"""Attention laws: log-sum-exp, fused rotation, independence of neighbours, and random batches against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.attention import merge, rope_table, rotate
from paged_conformance.oracles.scene import Output, Scene, Span, assert_same, cache_types, cached_need, plain_need
from paged_core.api.batch import Batch

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")


@requires("lse")
def test_log_sum_exp_equals_the_oracle(attn: Candidate) -> None:
    need = plain_need(attn, ("lse",))
    scene = Scene(attn.create(need), need, [1, 16, 40, 600])
    for prefixes in ([0] * 4, [0, 15, 39, 599]):
        lse = scene.check(scene.spans(prefixes), "out and log-sum-exp equal the oracle").lse
        assert lse is not None, "a need that requires lse gets a log-sum-exp from forward, not None"
        assert lse.dtype == torch.float32, f"log-sum-exp is float32, not {lse.dtype}"


def test_forward_returns_none_unless_lse_is_required(attn: Candidate) -> None:
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [17])
    lse = scene.step(scene.spans([0])).lse
    assert lse is None, "the need does not require lse: forward returns None"


@requires("lse", "softcap", "sliding_window")
def test_log_sum_exp_under_window_and_softcap_equals_the_oracle(attn: Candidate) -> None:
    need = replace(plain_need(attn, ("lse", "softcap", "sliding_window")), softcap=4.0, windows=(10,))
    scene = Scene(attn.create(need), need, [1, 16, 40])
    scene.check(
        scene.spans([0] * 3), "the log-sum-exp is that of capped, windowed logits", replace(scene.layer, window=10)
    )


@requires("lse")
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_two_halves_of_a_context_merge_to_the_whole(attn: Candidate, num_blocks: int) -> None:
    """One query reads the first blocks through one table and the others through another, writing nothing."""
    need = plain_need(attn, ("lse",))
    scene = Scene(attn.create(need), need, [60])
    whole_span = scene.spans([59])
    scene.step(scene.spans([0]))
    whole = scene.step(whole_span)
    cut = num_blocks * need.block_size
    tables = np.full((2, 4), 2**31 - 1, dtype=np.int32)
    tables[0, :num_blocks] = scene.blocks(0)[:num_blocks]
    tables[1, : 4 - num_blocks] = scene.blocks(0)[num_blocks:]
    lengths = np.array([cut, 60 - cut], dtype=np.int32)
    rows, slots = np.arange(2, dtype=np.int32), np.full(2, -1, dtype=np.int64)
    halves = Batch(2, 2, np.arange(3, dtype=np.int32), lengths, rows, tables, lengths - 1, slots)
    q, k, v = (torch.cat([each, each]) for each in scene.inputs(whole_span))
    both = scene.forward(halves, (q, k, v))
    assert both.lse is not None
    assert whole.lse is not None
    out, lse = merge([(both.out[i : i + 1], both.lse[i : i + 1]) for i in range(2)])
    law = f"attention over positions 0..{cut - 1} and {cut}..59, merged by log-sum-exp, is attention over all"
    assert_same(whole.out, out, scene, whole_span, law)
    assert_same(whole.lse, lse, scene, whole_span, f"{law} (log-sum-exp)")


@requires("fused_rope")
@pytest.mark.parametrize("rotary_dim", [64, 32, 2])
def test_fused_rotation_equals_rotating_first(attn: Candidate, rotary_dim: int) -> None:
    for element in cache_types(attn):
        plain = cached_need(attn, element)
        need = replace(plain, required=frozenset({"fused_rope"}))
        fused = Scene(attn.create(need), need, [1, 15, 40, 70])
        fused.rotary_dim = rotary_dim
        rotated = replace(fused.layer, rope=0)
        law = f"fused_rope rotates the leading {rotary_dim} of {need.head_dim} dimensions by Batch.rope"
        first = [replace(span, count=span.count // 2) for span in fused.spans([0, 0, 0, 0])[1:]]
        rest = fused.spans([0, 7, 20, 35])
        actual = [fused.check(spans, law, rotated).out for spans in (first, rest)]
        by_hand = Scene(attn.create(plain), plain, fused.lengths)
        for index, length in enumerate(fused.lengths):
            cos, sin = rope_table(torch.arange(length), rotary_dim)
            by_hand.q[index], by_hand.k[index] = (rotate(x[index], cos, sin) for x in (by_hand.q, by_hand.k))
        for spans, out in zip((first, rest), actual, strict=True):
            assert_same(out, by_hand.step(spans).out.double(), by_hand, spans, f"{law}, as a decoder would beforehand")


@requires("fused_rope")
def test_a_layer_without_rotary_positions_is_not_rotated(attn: Candidate) -> None:
    need = plain_need(attn, ("fused_rope",))
    scene = Scene(attn.create(need), need, [1, 40])
    scene.rotary_dim = 64
    assert scene.layer.rope == -1
    scene.check(scene.spans([0, 0]), "a layer with rope -1 has no rotary positions")
    scene.check(scene.spans([0, 39]), "one plan serves layers with and without rotation", replace(scene.layer, rope=-1))


def crowd(attn: Candidate, lengths: list[int]) -> Scene:
    """Sequence i has the same q, k and v in every crowd, and other blocks."""
    need = plain_need(attn, ("batch_invariant",) if attn.has("batch_invariant") else ())
    return Scene(attn.create(need), need, lengths)


@pytest.mark.parametrize("neighbours", [[5], [1, 600, 33], [40] * 15], ids=lambda n: f"{len(n)}neighbours")
@pytest.mark.parametrize("prefix", [39, 20, 0], ids=["decode", "chunk", "prefill"])
def test_neighbours_do_not_change_a_result(attn: Candidate, prefix: int, neighbours: list[int]) -> None:
    """Bit for bit where `batch_invariant` is declared, else beyond rounding."""
    alone, together = crowd(attn, [40]), crowd(attn, [40, *neighbours])
    begun = [prefix, *(length - 1 for length in neighbours)]
    if prefix:
        alone.step([Span(0, 0, prefix)])
    together.step([span for span in together.spans([0] * len(begun)) if span.sequence or prefix])
    own = alone.spans([prefix])
    order = together.spans(begun)[::-1]  # the sequence of interest comes last
    reference = alone.step(own).out
    actual = together.step(order).out[-reference.shape[0] :]
    law = f"{len(neighbours)} neighbours of lengths {sorted(set(neighbours))} do not change a sequence's result"
    if attn.has("batch_invariant"):
        num_wrong = int((actual != reference).sum())
        assert not num_wrong, f"{law}, bit for bit (batch_invariant): {num_wrong} of {actual.numel()} elements differ"
    else:
        assert_same(actual, reference.double(), alone, own, f"{law} beyond rounding")


@pytest.mark.parametrize("num_blocks", [2, 16, 44])
def test_a_shared_prefix_that_is_announced_changes_no_result(attn: Candidate, num_blocks: int) -> None:
    """Decodes whose tables begin with the same blocks, told or not told so; a backend may make nothing of it.

    Bit for bit where `batch_invariant` is declared, else beyond rounding.
    """
    lengths = [num_blocks * 16 + own for own in (1, 17, 40, 70)] + [30]
    scene = crowd(attn, lengths)
    common, members = num_blocks * scene.need.block_size, (0, 1, 3)
    for index in members[1:]:
        scene.tables[scene.rows[index], :num_blocks] = scene.blocks(0)[:num_blocks]
        for each in (scene.k, scene.v):
            each[index][:common] = each[0][:common]
    scene.step(scene.spans([0] * len(lengths)))
    spans = scene.spans([length - 1 for length in lengths])
    alone = scene.check(spans, "sequences with leading blocks in common keep their own results").out
    told = replace(scene.batch(spans), shared_prefixes=[(scene.rows[list(members)], num_blocks)])
    actual = scene.forward(told, scene.inputs(spans)).out
    law = f"announcing that three sequences share their first {num_blocks} blocks changes no result"
    if attn.has("batch_invariant"):
        assert torch.equal(actual, alone), f"{law}, bit for bit (batch_invariant)"
    else:
        assert_same(actual, alone.double(), scene, spans, f"{law} beyond rounding")


def test_near_identical_sequences_are_told_apart(attn: Candidate) -> None:
    """Six sequences equal but for one position in the middle, decoded in one batch (vLLM issue 27034)."""
    scene = crowd(attn, [33] * 6)
    for index in range(1, 6):
        for each in (scene.q, scene.k, scene.v):
            middle = each[index][16].clone()
            each[index].copy_(each[0])
            each[index][16] = middle
    scene.check(scene.spans([0] * 6), "sequences that differ in one token keep their own results")
    scene.check(scene.spans([32] * 6), "sequences that differ in one token keep their own results")


def test_nan_of_one_sequence_stays_its_own(attn: Candidate) -> None:
    scene = crowd(attn, [20, 33, 1])
    spans = scene.spans([0, 0, 0])
    expected = scene.expected(spans).out
    for each in (scene.q, scene.k, scene.v):
        each[1].fill_(float("nan"))
    out = scene.step(spans).out
    for begin, end, name in ((0, 20, "before"), (53, 54, "behind")):
        law = f"the sequence {name} one that is all NaN"
        assert_same(out[begin:end], expected[begin:end], scene, [spans[0 if name == "before" else 2]], law)


def test_steps_leave_no_trace_in_the_backend(attn: Candidate) -> None:
    """A large batch, then a small one, then the large one again: scratch memory of one step is not read by another."""
    scene = crowd(attn, [300, 40, 17, 1])
    whole = scene.spans([0] * 4)
    first: Output = scene.check(whole, "a large batch equals the oracle")
    scene.check([whole[3]], "a small batch behind a large one equals the oracle")
    scene.check(scene.spans([299, 39, 16, 0]), "decodes behind prefills equal the oracle")
    again = scene.check(whole, "a large batch behind a small one equals the oracle")
    if attn.has("batch_invariant"):
        assert torch.equal(first.out, again.out), "batch_invariant: the same batch again gives the same bits"


def test_random_batches_equal_the_oracle(attn: Candidate) -> None:
    sequences = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=6)
    heads = st.sampled_from([(4, 4), (8, 2), (4, 1)])

    @settings(
        max_examples=15 if attn.quick else 60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences, heads, st.sampled_from([16, 32]), st.integers(0, 3))
    def run(pairs: list[tuple[int, int]], heads: tuple[int, int], block_size: int, seed: int) -> None:
        need = replace(plain_need(attn), num_heads=heads[0], num_kv_heads=heads[1], block_size=block_size)
        scene = Scene(attn.create(need), need, [prefix + new for prefix, new in pairs], seed)
        scene.poison()
        begun = [Span(index, 0, prefix) for index, (prefix, _) in enumerate(pairs) if prefix]
        if begun:
            scene.check(begun, f"prefixes of {pairs} equal the oracle")
        scene.check(scene.spans([prefix for prefix, _ in pairs]), f"(prefix, new) = {pairs} in one step")

    run()
