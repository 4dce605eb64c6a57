"""Attention: every declared shape equals the oracle, and every other is refused with a reason."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paged_conformance.cases import (
    BLOCK_SIZES,
    CACHE_TYPES,
    HEAD_DIMS,
    HEADS,
    MANDATORY_BLOCK_SIZES,
    MANDATORY_HEAD_DIMS,
    ElementType,
    edge_lengths,
)
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.scene import Scene, assert_same, cache_types, cached_need, plain_need

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.api.attention import AttentionNeed

pytestmark = layer("behaviour")
elements = pytest.mark.parametrize("element", CACHE_TYPES, ids=lambda element: element.capability)


def assert_refused(attn: Candidate, need: AttentionNeed, why: str) -> None:
    """A refusal is an answer with reasons: never an exception, never a wrong number later."""
    fit = attn.fit(need)
    assert not fit.ok, f"contract: {attn.name} accepts {need}, though {why}"
    assert fit.reasons, f"contract: {attn.name} refuses {need} without a reason"


def mixed_batch(attn: Candidate, need: AttentionNeed) -> None:
    """Ragged lengths around block edges: prefilled, then decoded, prefilled in chunks and begun in one batch."""
    lengths = edge_lengths(need.block_size)
    scene = Scene(attn.create(need), need, [*lengths, *lengths])
    begun = [length - 1 for length in lengths] + [length // 2 for length in lengths]
    whole = scene.spans([0] * len(begun))
    first = [replace(span, count=prefix) for span, prefix in zip(whole, begun, strict=True) if prefix]
    scene.check(first, "a prefill from an empty prefix equals the oracle")
    scene.check(scene.spans(begun), "a batch of decodes and prefill chunks equals the oracle")


@pytest.mark.parametrize("head_dim", HEAD_DIMS, ids="dim{}".format)
@pytest.mark.parametrize("block_size", BLOCK_SIZES, ids="block{}".format)
@elements
def test_every_accepted_shape_equals_the_oracle(
    attn: Candidate, element: ElementType, block_size: int, head_dim: int
) -> None:
    need = replace(cached_need(attn, element), block_size=block_size, head_dim=head_dim)
    mandatory = block_size in MANDATORY_BLOCK_SIZES and head_dim in MANDATORY_HEAD_DIMS
    fit = attn.fit(need)
    if not attn.has(element.capability):
        assert_refused(attn, need, f"it does not declare {element.capability}")
    elif not fit.ok:
        assert not mandatory, f"contract: {attn.name} refuses a mandatory shape ({need}): {fit.reasons}"
        assert_refused(attn, need, "it said so a moment ago")
    elif mandatory or not attn.quick or (block_size, head_dim) in {(1, 80), (8, 96), (64, 256), (256, 112)}:
        mixed_batch(attn, need)


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]}over{heads[1]}")
def test_query_heads_read_the_key_value_head_of_their_group(attn: Candidate, heads: tuple[int, int]) -> None:
    need = replace(plain_need(attn), num_heads=heads[0], num_kv_heads=heads[1])
    if attn.fit(need).ok:
        mixed_batch(attn, need)
    else:
        assert heads not in ((4, 4), (8, 2)), f"contract: {heads[0]} over {heads[1]} heads is refused: {attn.fit(need)}"
        assert_refused(attn, need, "it said so a moment ago")


def test_heads_that_cannot_be_shared_evenly_are_refused(attn: Candidate) -> None:
    assert_refused(attn, replace(plain_need(attn), num_heads=4, num_kv_heads=3), "4 heads cannot share 3")


def test_an_unknown_element_type_is_refused(attn: Candidate) -> None:
    assert_refused(attn, replace(plain_need(attn), kv_dtype="float7_e3m3"), "there is no float7_e3m3")


@elements
def test_activations_and_cache_may_differ_in_type(attn: Candidate, element: ElementType) -> None:
    need = replace(plain_need(attn), dtype="bfloat16", kv_dtype=element.dtype)
    if attn.fit(need).ok:
        mixed_batch(attn, need)
    else:
        assert_refused(attn, need, "it said so a moment ago")


@pytest.mark.parametrize("length", [513, 1100, 2049])
def test_long_contexts_equal_the_oracle(attn: Candidate, length: int) -> None:
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [length, 5, length // 2])
    scene.step([replace(scene.spans([0, 0, 0])[0], count=length - 1)])
    scene.check(scene.spans([length - 1, 0, 0]), "a decode behind a long prefix, beside prefills, equals the oracle")


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_chunked_prefill_equals_whole_prefill(attn: Candidate, chunk: int) -> None:
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [50, 33, 17])
    whole = scene.spans([0, 0, 0])
    for begin in range(0, max(scene.lengths), chunk):
        spans = [
            replace(span, first=begin, count=min(chunk, span.count - begin)) for span in whole if span.count > begin
        ]
        scene.check(spans, f"chunks of {chunk} tokens give the numbers of a whole prefill")


@pytest.mark.parametrize("scale", [1.0, 0.03])
def test_logits_are_scaled_by_the_layer(attn: Candidate, scale: float) -> None:
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [1, 40])
    spans = scene.spans([0, 0])
    scene.check(spans, f"logits are q.k * scale ({scale})", replace(scene.layer, scale=scale))


def test_large_logits_stay_finite(attn: Candidate) -> None:
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [40, 1])
    scene.q = [q * 64 for q in scene.q]
    scene.check(scene.spans([0, 0]), "softmax subtracts the largest logit", replace(scene.layer, scale=1.0))


@requires("sliding_window")
@pytest.mark.parametrize("window", [1, 7, 15, 16, 17, 48, 500])
def test_sliding_window_sees_the_last_w_positions(attn: Candidate, window: int) -> None:
    need = replace(plain_need(attn, ("sliding_window",)), windows=(window,))
    scene = Scene(attn.create(need), need, [1, 15, 16, 17, 40, 70, 600])
    layer = replace(scene.layer, window=window)
    begun = [length - 1 for length in scene.lengths]
    whole = scene.spans([0] * len(begun))
    scene.check(whole, f"position p sees j with p - {window} < j <= p", layer)
    scene.check(scene.spans(begun), f"a decode at p sees j with p - {window} < j <= p", layer)
    scene.check(scene.spans([n // 2 for n in begun]), f"a chunk at p sees j with p - {window} < j <= p", layer)


@requires("sliding_window")
def test_one_plan_serves_layers_with_and_without_a_window(attn: Candidate) -> None:
    need = replace(plain_need(attn, ("sliding_window",)), windows=(9, 20))
    scene = Scene(attn.create(need), need, [33, 1, 64])
    spans = scene.spans([0, 0, 60])
    scene.step([replace(spans[2], first=0, count=60)])
    plan = scene.backend.plan(scene.batch(spans))
    for index, window in itertools.product(range(2), (None, 9, 20)):
        layer = replace(scene.layer, index=index, window=window)
        out = scene.run_plan(plan, scene.inputs(spans), layer).out
        expected = scene.expected(spans, layer).out
        assert_same(out, expected, scene, spans, f"one plan serves every layer; here window {window}")


def test_windows_and_softcaps_are_refused_unless_declared(attn: Candidate) -> None:
    plain = plain_need(attn)
    if not attn.has("sliding_window"):
        assert_refused(attn, replace(plain, windows=(8,)), "it does not declare sliding_window")
    if not attn.has("softcap"):
        assert_refused(attn, replace(plain, softcap=30.0), "it does not declare softcap")
    declared = replace(
        plain,
        windows=(8,) if attn.has("sliding_window") else (),
        softcap=30.0 if attn.has("softcap") else None,
    )
    assert attn.fit(declared).ok, f"contract: {attn.name} refuses what it declares: {attn.fit(declared).reasons}"


@requires("softcap")
@pytest.mark.parametrize("softcap", [2.0, 50.0])
def test_softcap_bounds_the_logits(attn: Candidate, softcap: float) -> None:
    need = replace(plain_need(attn, ("softcap",)), softcap=softcap)
    scene = Scene(attn.create(need), need, [1, 17, 40, 600])
    scene.q = [q * 8 for q in scene.q]
    scene.check(scene.spans([0] * 4), f"logits become {softcap} * tanh(logits / {softcap})")
    scene.check(scene.spans([0, 16, 39, 599]), f"logits of a decode become {softcap} * tanh(logits / {softcap})")


@requires("softcap", "sliding_window")
def test_softcap_and_window_together(attn: Candidate) -> None:
    need = plain_need(
        attn,
        (
            "softcap",
            "sliding_window",
        ),
    )
    need = replace(need, softcap=5.0, windows=(12,))
    scene = Scene(attn.create(need), need, [1, 17, 40])
    layer = replace(scene.layer, window=12)
    scene.check(scene.spans([0] * 3), "the window hides after the soft-cap bounded", layer)


def test_declared_element_types_are_accepted(attn: Candidate) -> None:
    for element in cache_types(attn):
        need = cached_need(attn, element)
        fit = attn.fit(need)
        assert fit.ok, f"contract: {attn.name} declares {element.capability} and refuses it: {fit.reasons}"
