"""Native calls: forward of several layers as machine code that any number of threads run together."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paged_conformance.marks import layer, requires
from paged_conformance.oracles.scene import Scene, cache_types, cached_need, plain_need

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.api.attention import NativeCalls

pytestmark = layer("laws")
LENGTHS = [1, 16, 40, 600]
NUM_LAYERS = 3


def run(calls: NativeCalls, num_threads: int) -> None:
    """Every layer in order, by all threads; ctypes lets go of the interpreter while they run."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(calls.function)
    with ThreadPoolExecutor(num_threads) as pool:
        for argument in calls.arguments.tolist():
            list(pool.map(function, [argument] * num_threads))


@requires("native_calls")
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_native_calls_do_what_forward_does(attn: Candidate, num_threads: int) -> None:
    """Outputs and caches of three layers, prefill and decode, to the bit."""
    for element in cache_types(attn):
        need = replace(cached_need(attn, element), required=frozenset({"native_calls"}))
        scene, native = (Scene(attn.create(need), need, LENGTHS) for _ in range(2))
        layers = [
            replace(scene.layer, index=index, scale=scene.layer.scale * (1 + index)) for index in range(NUM_LAYERS)
        ]
        wanted, got = ([each.new_cache(each.num_blocks) for _ in layers] for each in (scene, native))
        for prefixes in ([0, 0, 20, 300], [0, 15, 39, 599]):
            spans = scene.spans(prefixes)
            q, k, v = native.inputs(spans)
            plan, other = scene.backend.plan(scene.batch(spans)), native.backend.plan(native.batch(spans))
            expected, out = torch.empty_like(q), torch.empty_like(q)
            calls = native.backend.native_calls(layers, (q, k, v), got, other, out)
            assert calls is not None, "native_calls is declared: a need without lse gets them"
            assert calls.arguments.shape == (NUM_LAYERS,)
            assert calls.arguments.dtype == np.int64
            expected_of_layers = []
            for each, cache in zip(layers, wanted, strict=True):
                scene.backend.forward(each, q, k, v, cache, plan, expected)
                expected_of_layers.append(expected.clone())
            run(calls, num_threads)
            assert torch.equal(out, expected_of_layers[-1]), f"{num_threads} threads give forward's output, to the bit"
            for mine, its in zip(got, wanted, strict=True):
                same = (mine.view(torch.uint8) == its.view(torch.uint8)).all()
                assert same, f"{num_threads} threads write forward's keys and values, to the bit"


@requires("native_calls", "sliding_window")
def test_native_calls_serve_layers_of_different_windows(attn: Candidate) -> None:
    need = replace(plain_need(attn, ("native_calls", "sliding_window")), windows=(8,))
    scene, native = (Scene(attn.create(need), need, LENGTHS) for _ in range(2))
    layers = [replace(scene.layer, index=0, window=8), replace(scene.layer, index=1)]
    for first in range(2):
        order = layers[first:] + layers[:first]
        spans = scene.spans([0] * 4)
        q, k, v = native.inputs(spans)
        out = torch.empty_like(q)
        caches = [native.new_cache(native.num_blocks) for _ in order]
        calls = native.backend.native_calls(order, (q, k, v), caches, native.backend.plan(native.batch(spans)), out)
        assert calls is not None
        run(calls, 2)
        expected = scene.step(spans, order[-1]).out
        assert torch.equal(out, expected), "the layer called last decides the output, by its own window"
