"""Attention with a cache of float8_e4m3fn: how numbers are rounded, and that each KV head has its own scales."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from paged_conformance.cases import E4M3
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.attention import narrowed
from paged_conformance.oracles.scene import Scene, cached_need

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")
HALF_WAYS = (1.0625, 1.1875, 17.0, 19.0, 0.0009765625, 0.0029296875)  # ties between neighbours, of normals and not
EDGES = (0.0, -0.0, 448.0, 449.0, 464.0, 500.0, 1e6, 2.0**-6, 2.0**-9, 2.0**-10, 2.0**-11, 0.0156, 3.14159, *HALF_WAYS)


def scene_of(attn: Candidate, lengths: list[int], required: tuple[str, ...] = ()) -> Scene:
    need = cached_need(attn, E4M3, required)
    return Scene(attn.create(need), need, lengths)


def read_back(scene: Scene, layer_scale: float | tuple[float, ...] = 1.0) -> torch.Tensor:
    """What a sequence of one token answers with is its value as stored: float64 [sequences, kv_heads, head_dim]."""
    group = scene.need.num_heads // scene.need.num_kv_heads
    answer = scene.step(scene.spans([0] * len(scene.lengths)), replace(scene.layer, v_scale=layer_scale))
    return answer.out[:, ::group].double()


@requires("fp8")
def test_numbers_are_rounded_to_the_nearest_and_ties_to_even(attn: Candidate) -> None:
    scene = scene_of(attn, [1] * 4)
    numbers = torch.tensor([sign * edge for edge in EDGES for sign in (1, -1)])
    for v in scene.v:
        v[0].view(-1)[: len(numbers)] = numbers.to(v.dtype)
    expected = torch.cat([narrowed(v, 1.0) for v in scene.v])
    wrong = (read_back(scene) - expected).abs() > 1e-2 * expected.abs() + 1e-9  # one step is at least 6 %
    assert not wrong.any(), (
        f"{numbers[wrong[0].view(-1)[: len(numbers)]].tolist()} are not rounded as the contract says"
    )


@requires("fp8")
def test_a_number_that_is_none_stays_none(attn: Candidate) -> None:
    scene = scene_of(attn, [1, 1])
    scene.v[0][0, 1, 3] = float("nan")
    back = read_back(scene)
    assert back[0, 1, 3].isnan(), "a NaN that the model made must not become a number"
    assert not back[1].isnan().any(), "nor spread to a neighbour"


@requires("fp8")
@pytest.mark.parametrize("scales", [(0.25, 4.0), (2.0, 2.0)], ids=["own", "same"])
def test_each_head_is_stored_by_its_own_scale(attn: Candidate, scales: tuple[float, float]) -> None:
    """With and without scales that differ, over prefills, chunks and decodes; powers of two divide exactly."""
    scene = scene_of(attn, [1, 15, 16, 17, 70])
    for i, scale in enumerate(scales):
        for rows in (*scene.k, *scene.v):
            rows[:, i] *= scale
    scaled = replace(scene.layer, k_scale=scales, v_scale=(scales[1], scales[0]), scale=scene.layer.scale / 4)
    law = f"a cache of e4m3 holds k / {scales[0]} in its first head and k / {scales[1]} in its second"
    scene.check(scene.spans([0, 7, 0, 0, 0])[:1], law, scaled)
    scene.check([replace(span, count=span.count // 2) for span in scene.spans([0] * 5)[1:]], law, scaled)
    scene.check(scene.spans([0, 7, 8, 8, 35]), law, scaled)


@requires("fp8")
def test_one_scale_may_serve_all_heads(attn: Candidate) -> None:
    scene = scene_of(attn, [1, 40])
    scene.v = [v * 1000 for v in scene.v]  # beyond what is stored without a scale
    scaled = replace(scene.layer, k_scale=0.5, v_scale=8.0)
    scene.step(scene.spans([0, 39])[:1], scaled)
    scene.step([replace(scene.spans([0, 0])[1], count=39)], scaled)
    actual, expected = scene.step(scene.spans([0, 39]), scaled), scene.expected(scene.spans([0, 39]), scaled)
    error = (actual.out.double() - expected.out).abs().max()
    assert error <= 1e-3 * expected.out.abs().max(), f"a scale of 8 brings values of 1,000 back: off by {error}"
