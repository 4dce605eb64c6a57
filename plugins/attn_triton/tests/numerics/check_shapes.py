"""Attention in shapes, parts and layers that the conformance suite does not combine, against its oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from paged_conformance.oracles.scene import Scene, Span, assert_same

from paged_core.device.grids import DevicePlan

HEADS = [(1, 1), (3, 1), (10, 2), (16, 1), (20, 4), (24, 1), (34, 2)]  # groups of 1, 3, 5, 16, 5, 24 and 17
HEAD_DIMS = [16, 48, 80, 96, 112, 256]


def scene_of(backend, lengths, seed=0):
    """Sequences in a pool of NaN."""
    scene = Scene(backend, backend._need, lengths, seed)
    scene.poison()
    return scene


def in_steps(scene, prefixes, law, layer=None):
    """A prefill of a prefix of each sequence, then the rest."""
    spans = [Span(i, 0, prefix) for i, prefix in enumerate(prefixes) if prefix]
    scene.check(spans, f"{law}: prefixes", layer)
    scene.check(scene.spans(prefixes), f"{law}: the rest", layer)


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]}over{heads[1]}")
def test_groups(create, heads):
    backend = create(num_heads=heads[0], num_kv_heads=heads[1], head_dim=32)
    in_steps(scene_of(backend, [1, 40, 90, 70]), [0, 39, 89, 30], f"{heads}")


@pytest.mark.parametrize(("head_dim", "block_size"), list(zip(HEAD_DIMS, [8, 32, 64, 128, 256, 8], strict=True)))
def test_heads_and_blocks(create, head_dim, block_size):
    backend = create(head_dim=head_dim, block_size=block_size)
    in_steps(scene_of(backend, [1, 40, 270, 70]), [0, 39, 269, 30], f"{head_dim}, {block_size}")


@pytest.mark.parametrize(("window", "softcap"), [(None, 3.0), (1, None), (50, None), (64, 3.0), (300, None)])
def test_parts_and_windows(create, window, softcap):
    backend = create(processors=60, split_tokens=32, required=frozenset({"lse"}))
    scene = scene_of(backend, [1, 65, 333])
    layer = replace(scene.layer, window=window, softcap=softcap)
    scene.step(scene.spans([0, 0, 0]), layer)
    spans = scene.spans([0, 64, 332])
    assert backend.plan(scene.batch(spans)).num_splits == 17
    scene.check(spans, "decodes in up to 17 parts", layer)


def test_more_parts_than_the_merge_takes_up_at_once(create):
    backend = create(processors=60, split_tokens=32, num_heads=2, num_kv_heads=1, head_dim=16)
    scene = scene_of(backend, [1300])
    scene.k[0][1200:, 0] = scene.q[0][1299].sum(0)  # what comes last weighs most, so that the merge has to weigh anew
    scene.step([Span(0, 0, 1299)])
    assert backend.plan(scene.batch([Span(0, 1299, 1)])).num_splits == 55
    scene.check([Span(0, 1299, 1)], "a decode in 21 parts")


def test_the_parts_of_an_invariant_result_follow_from_its_length(create):
    results = []
    for neighbours in ([], [5] * 4, [700]):
        backend = create(required=frozenset({"batch_invariant"}), head_dim=16)
        scene = scene_of(backend, [600, *neighbours])
        prefixes = [length - 1 for length in scene.lengths]
        scene.step([Span(i, 0, prefix) for i, prefix in enumerate(prefixes)])
        assert backend.plan(scene.batch(scene.spans(prefixes))).num_splits == 8
        results.append(scene.check(scene.spans(prefixes), "decodes beside neighbours").out[:1])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("seed", range(6))
def test_everything_at_once(create, seed):
    """Strided q, k, v and out, rotation of part of a head, windows, parts, e4m3 by head, in a poisoned pool."""
    random = np.random.default_rng(seed)
    heads = HEADS[seed]
    kv_dtype = ("float8_e4m3fn", "float16")[seed % 2]
    backend = create(
        processors=int(random.integers(4, 40)),
        split_tokens=int(random.integers(20, 100)),
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=HEAD_DIMS[seed],
        block_size=int(2 ** random.integers(3, 8)),
        dtype="float16",
        kv_dtype=kv_dtype,
        required=frozenset({"lse"}),
    )
    lengths = [1, *random.integers(2, 150, 4).tolist()]
    scene = scene_of(backend, lengths, seed)
    scene.rotary_dim = int(2 * random.integers(1, HEAD_DIMS[seed] // 2 + 1))
    scales = tuple(2.0 ** random.integers(-2, 3, heads[1])) if kv_dtype == "float8_e4m3fn" else 1.0
    layer = replace(scene.layer, rope=0, window=(None, 60)[seed // 2 % 2], k_scale=scales, v_scale=scales)
    prefixes = [0, lengths[1] - 1, lengths[2] // 2, lengths[3] - 1, 0]
    scene.check([Span(i, 0, prefix) for i, prefix in enumerate(prefixes) if prefix], "prefixes", layer)
    spans = scene.spans(prefixes)
    q, k, v = scene.inputs(spans)
    fused = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
    parts = torch.split(fused, [x[0].numel() for x in (q, k, v)], dim=1)
    q, k, v = (part.view(len(fused), -1, scene.need.head_dim) for part in parts)
    both = torch.full((len(q), 2, *q.shape[1:]), 7.0, dtype=q.dtype, device=q.device)
    lse = backend.forward(layer, q, k, v, scene.cache, backend.plan(scene.batch(spans)), both[:, 1])
    expected = scene.expected(spans, layer)
    assert_same(both[:, 1].cpu(), expected.out, scene, spans, "strided inputs")
    assert_same(lse.cpu(), expected.lse, scene, spans, "log-sum-exp")
    assert (both[:, 0] == 7.0).all()


def test_a_batch_of_padding_only_answers_with_zeros(create):
    backend = create(required=frozenset({"lse"}))
    scene = scene_of(backend, [1, 1, 1])
    batch = scene.batch(scene.spans([0, 0, 0]))
    batch.seq_lens[:] = 0
    batch.slots[:] = -1
    answer = scene.forward(batch, scene.inputs(scene.spans([0, 0, 0])))
    assert not answer.out.any()
    assert (answer.lse == -torch.inf).all()
    assert scene.cache.isnan().all()


def test_where_nothing_is_cut_there_is_no_scratch(create):
    """The need does not say how large a step may be, so none was made in advance."""
    backend = create(processors=1, num_kv_heads=1, max_rows=0, token_budget=0)
    scene = scene_of(backend, [300, 1, 1])
    scene.step([Span(0, 0, 299)])
    for count, num_splits in ((3, 1), (1, 2)):
        spans = scene.spans([299, 0, 0])[:count]
        assert backend.plan(scene.batch(spans)).num_splits == num_splits
        scene.check(spans, f"decodes in up to {num_splits} parts")


def test_no_tokens_are_no_launch(create):
    backend = create()
    plan = DevicePlan(None, [], 0, 0, 0, 0)
    empty = torch.zeros(0, 4, 64, device=backend._device)
    cache = torch.zeros(backend.layout(2).shape, device=backend._device)
    assert backend.forward(Scene(backend, backend._need, [1]).layer, empty, empty, empty, cache, plan, empty) is None


def test_blocks_move_between_pools_in_one_launch(create):
    """What swaps use: sources and targets are different tensors of different numbers of blocks."""
    backend = create(head_dim=80, block_size=8)
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randn(backend.layout(7).shape, generator=generator).to(backend._device) for _ in range(3)]
    targets = [torch.randn(backend.layout(9).shape, generator=generator).to(backend._device) for _ in range(3)]
    expected = [target.clone() for target in targets]
    pairs = np.array([[6, 8], [0, 3], [6, 0]], dtype=np.int64)
    for want, source in zip(expected, sources, strict=True):
        want[pairs[:, 1]] = source[pairs[:, 0]]
    backend._copy(sources, targets, pairs)
    assert all(torch.equal(target, want) for target, want in zip(targets, expected, strict=True))


@pytest.mark.parametrize("name", ["q", "out", "kv"])
def test_tensors_that_lie_otherwise_are_refused(create, name):
    backend = create()
    scene = Scene(backend, backend._need, [4])
    spans = scene.spans([0])
    q, k, v = scene.inputs(spans)
    tensors = {"q": q, "out": torch.empty_like(q), "kv": scene.cache}
    tensors[name] = tensors[name].transpose(-1, -2).contiguous().transpose(-1, -2)
    with pytest.raises(ValueError, match="strides"):
        backend.forward(
            scene.layer, tensors["q"], k, v, tensors["kv"], backend.plan(scene.batch(spans)), tensors["out"]
        )


def test_scales_without_use_or_of_another_number_are_refused(create):
    for changes, scale in itertools.product([{}, {"kv_dtype": "float8_e4m3fn"}], [2.0, (1.0, 2.0, 3.0)]):
        scene = Scene(create(**changes), create(**changes)._need, [1])
        layer = replace(scene.layer, k_scale=scale)
        if changes and isinstance(scale, float):
            scene.step(scene.spans([0]), layer)
        else:
            with pytest.raises(ValueError, match="scale"):
                scene.step(scene.spans([0]), layer)
