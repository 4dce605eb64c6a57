"""The kernels behind the backend, run by the emulation on the CPU, equal a dense softmax in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

pytest.importorskip("paged_conformance", reason="the conformance suite is not installed: it has the oracle")
from paged_attn_cuda.kernels import ELEMENTS, HEAD_DIMS
from paged_conformance.oracles.scene import Scene, Span, assert_same

from paged_core.api.allocator import BlockCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_attn_cuda.backend import CudaAttention

    Make = Callable[..., CudaAttention]

FP8 = "float8_e4m3fn"
PAIRS = [(dtype, kv_dtype) for dtype in ELEMENTS if dtype != FP8 for kv_dtype in (dtype, FP8)]
LENGTHS = (1, 17, 40, 131)


def scene_of(backend: CudaAttention, lengths: Sequence[int]) -> Scene:
    """Sequences in a cache that is NaN wherever nobody wrote."""
    scene = Scene(backend, backend._need, lengths)
    scene.poison()
    return scene


def check_steps(scene: Scene, **changes: Any) -> None:
    """Prefill, then chunks beside decodes, then decodes alone."""
    layer = replace(scene.layer, **changes)
    whole = scene.spans([0] * len(scene.lengths))
    scene.check([replace(span, count=span.count - 1) for span in whole if span.count > 1], "prefill", layer)
    middle = [length // 2 if index % 2 else length - 1 for index, length in enumerate(scene.lengths)]
    scene.check(scene.spans(middle), "chunks beside decodes", layer)
    scene.check(scene.spans([length - 1 for length in scene.lengths]), "decodes", layer)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), PAIRS, ids=map("-".join, PAIRS))
def test_every_instantiation_equals_the_oracle(backend: Make, dtype: str, kv_dtype: str, head_dim: int) -> None:
    scene = scene_of(backend(dtype=dtype, kv_dtype=kv_dtype, head_dim=head_dim), LENGTHS)
    scales = {"k_scale": (0.5, 0.25), "v_scale": (2.0, 0.125)} if kv_dtype == FP8 else {}
    check_steps(scene, **scales)


@pytest.mark.parametrize("head_dim", [16, 48, 80, 112, 144])
def test_other_head_sizes_are_padded(backend: Make, head_dim: int) -> None:
    for kv_dtype in ("bfloat16", FP8):
        check_steps(scene_of(backend(dtype="bfloat16", kv_dtype=kv_dtype, head_dim=head_dim), (1, 40)))


@pytest.mark.parametrize("heads", [(1, 1), (7, 1), (20, 1), (34, 2), (130, 1)], ids=str)
def test_groups_of_any_size_are_served(backend: Make, heads: tuple[int, int]) -> None:
    """Beyond 16 query heads a KV head, a decode takes several programs; beyond 128, a prefill too."""
    check_steps(
        scene_of(backend(dtype="bfloat16", kv_dtype="bfloat16", num_heads=heads[0], num_kv_heads=heads[1]), (9,))
    )


@pytest.mark.parametrize("window", [None, 1, 100, 700])
@pytest.mark.parametrize("lse", [False, True], ids=["out", "lse"])
def test_cut_contexts_are_merged(host_backend: Make, launcher: Any, window: int | None, lse: bool) -> None:
    """As many ranges as there may be, ragged lengths around their edges, some with a single range."""
    launcher.num_processors = 1000
    windows = () if window is None else (window,)
    required = frozenset({"lse"}) if lse else frozenset()
    scene = scene_of(host_backend(windows=windows, required=required), (1, 127, 128, 129, 385, 1030))
    layer = replace(scene.layer, window=window)
    prompts = [replace(span, count=span.count - 1) for span in scene.spans([0] * 6) if span.count > 1]
    scene.check(prompts, f"prefills under window {window}", layer)
    scene.check(scene.spans([min(7, n - 1) for n in scene.lengths]), "chunks that begin within a tile of keys", layer)
    launcher.launches.clear()
    scene.check(scene.spans([length - 1 for length in scene.lengths]), f"decodes under window {window}", layer)
    assert [name.split("<")[0] for name in launcher.launches] == ["paged::write", "paged::decode", "paged::merge"]


def test_the_same_numbers_come_out_however_contexts_are_cut(host_backend: Make, launcher: Any) -> None:
    outs = []
    for num_processors in (1, 1000):
        launcher.num_processors = num_processors
        scene = scene_of(host_backend(), (700, 40))
        scene.step([Span(0, 0, 699), Span(1, 0, 39)])
        outs.append(scene.step(scene.spans([699, 39])).out)
    assert torch.allclose(outs[0], outs[1], atol=1e-6)
    assert not torch.equal(outs[0], outs[1]), "a context that was cut is summed in another order"


@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", FP8)])
def test_threads_may_run_in_any_order(
    host_backend: Make, launcher: Any, host: Any, dtype: str, kv_dtype: str, order: str
) -> None:
    """To the bit: nothing depends on who comes first, so nobody reads what another is about to write."""
    launcher.num_processors = 1000
    outs = []
    for each in (host.Order("forward"), host.Order(order, 3)):
        launcher.order = each
        scene = scene_of(host_backend(dtype=dtype, kv_dtype=kv_dtype), (300, 70, 1))
        scene.step([Span(0, 0, 299), Span(1, 0, 30)])
        outs.append(scene.step(scene.spans([299, 30, 0])).out)
    assert torch.equal(*outs)


def test_kernels_do_nothing_that_cpp_leaves_undefined(host: Any) -> None:
    from paged_attn_cuda.backend import CudaAttention

    from paged_core.api.attention import AttentionNeed

    for dtype, kv_dtype in (("float32", "float32"), ("bfloat16", FP8)):
        need = AttentionNeed("cpu", dtype, kv_dtype, 4, 2, 64, 16, max_len=4096, max_rows=8, windows=(50,))
        launcher = host.HostLauncher(sanitize=True)
        launcher.num_processors = 1000
        check_steps(scene_of(CudaAttention(need, launcher), (200, 33)), window=50, softcap=20.0)


@pytest.mark.parametrize("name", ["q", "k", "v", "out"])
def test_rows_that_begin_between_vectors_are_read_and_written(backend: Make, name: str) -> None:
    scene = scene_of(backend(dtype="bfloat16", kv_dtype="bfloat16"), (20, 1))
    spans = scene.spans([0, 0])
    tensors = dict(zip("qkv", scene.inputs(spans), strict=True))
    tensors["out"] = torch.full_like(tensors["q"], 7.0)
    aligned = tensors[name]
    memory = torch.full((aligned.numel() + 8,), 7.0, dtype=aligned.dtype, device=aligned.device)
    begin = 3 - memory.data_ptr() // 2 % 8 % 2  # an odd element
    shifted = memory[begin : begin + aligned.numel()].view(aligned.shape)
    shifted.copy_(aligned)
    tensors[name] = shifted
    plan = scene.backend.plan(scene.batch(spans))
    q, k, v, out = (tensors[each] for each in ("q", "k", "v", "out"))
    assert shifted.data_ptr() % 16
    scene.backend.forward(scene.layer, q, k, v, scene.cache, plan, out)
    assert_same(out.cpu(), scene.expected(spans).out, scene, spans, f"{name} at an odd offset")
    rest = torch.cat([memory[:begin], memory[begin + aligned.numel() :]])
    assert (rest == 7.0).all(), "what lies around it belongs to somebody else"


@pytest.mark.parametrize("rotary_dim", [64, 24, 2])
@pytest.mark.parametrize("offset", [0, 1])
def test_angles_may_lie_anywhere(backend: Make, rotary_dim: int, offset: int) -> None:
    scene = scene_of(backend(required=frozenset({"fused_rope"})), (20, 1))
    scene.rotary_dim = rotary_dim
    spans, layer = scene.spans([0, 0]), replace(scene.layer, rope=0)
    batch = scene.batch(spans)
    rows, half = batch.rope[0][0].shape
    wide = [torch.full((rows, half + 5), 7.0, device=scene.need.device) for _ in range(2)]
    for memory, angles in zip(wide, batch.rope[0], strict=True):
        memory[:, offset : offset + half] = angles
    batch.rope = [(wide[0][:, offset : offset + half], wide[1][:, offset : offset + half])]
    actual = scene.forward(batch, scene.inputs(spans), layer)
    assert_same(actual.out, scene.expected(spans, layer).out, scene, spans, "angles in rows of a wider table")


def test_heads_must_lie_one_behind_the_other(backend: Make) -> None:
    scene = scene_of(backend(), (3,))
    spans = scene.spans([0])
    q, k, v = scene.inputs(spans)
    apart = torch.cat([q, q], dim=2)[:, :, :64]
    plan = scene.backend.plan(scene.batch(spans))
    with pytest.raises(ValueError, match="got q of strides"):
        scene.backend.forward(scene.layer, apart, k, v, scene.cache, plan, torch.empty_like(q))
    with pytest.raises(ValueError, match="got a cache of strides"):
        scene.backend.forward(scene.layer, q, k, v, scene.cache.transpose(3, 4), plan, torch.empty_like(q))


def test_the_stride_of_a_single_head_is_nobodys_business(backend: Make) -> None:
    scene = scene_of(backend(num_heads=4, num_kv_heads=1), (3, 1))
    spans = scene.spans([0, 0])
    q, k, v = scene.inputs(spans)
    k, v = (each.as_strided(each.shape, (64, 7, 1)) for each in (k, v))
    out = scene.forward(scene.batch(spans), (q, k, v)).out
    assert_same(out, scene.expected(spans).out, scene, spans, "one KV head of a strange stride")


def test_nan_of_a_sequence_reaches_its_own_rows_only(backend: Make) -> None:
    scene = scene_of(backend(dtype="bfloat16", kv_dtype=FP8), (40, 33))
    scene.v[0][7, 1, 5] = torch.nan
    out = scene.step(scene.spans([0, 0])).out
    assert out[7:40, 2:, 5].isnan().all(), "every query behind it sees it"
    assert not out[:, :2].isnan().any(), "the other KV head"
    assert not out[40:].isnan().any(), "the other sequence"


def test_copies_move_whole_blocks_between_pools_of_any_size(backend: Make) -> None:
    """A block of 3,072 bytes is no multiple of what a block of threads moves."""
    made = backend(dtype="bfloat16", kv_dtype="bfloat16", num_heads=3, num_kv_heads=3, head_dim=32, block_size=8)
    device = made._need.device
    pools = [[torch.randn(made.layout(n).shape, device=device).bfloat16() for _ in range(3)] for n in (9, 5)]
    before = [[cache.clone() for cache in pool] for pool in pools]
    pairs = np.array([[8, 0], [2, 4], [2, 1]], dtype=np.int64)
    made._copy(pools[0], pools[1], pairs)
    for read, written, old in zip(before[0], pools[1], before[1], strict=True):
        for source, target in pairs:
            old[target] = read[source]
        assert torch.equal(written, old)
    assert all(torch.equal(*each) for each in zip(pools[0], before[0], strict=True))


def test_copies_of_nothing_launch_nothing(host_backend: Make, launcher: Any) -> None:
    made = host_backend()
    made.copy_blocks([torch.zeros(made.layout(2).shape)], [])
    made.copy_blocks([], [BlockCopy(0, 1)])
    assert launcher.launches == []


def test_layers_of_a_step_allocate_nothing_but_what_they_return(backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are sent once; scratch and arguments are there already."""
    import paged_attn_cuda.backend as module

    scene = scene_of(backend(required=frozenset({"fused_rope"})), (20, 1))
    scene.rotary_dim = 64
    spans = scene.spans([0, 0])
    layer, inputs = replace(scene.layer, rope=0), scene.inputs(spans)
    plan, out = scene.backend.plan(scene.batch(spans)), torch.empty_like(inputs[0])
    scene.backend.forward(layer, *inputs, scene.cache, plan, out)

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("a layer allocates")

    monkeypatch.setattr(module, "uploaded", forbidden)
    monkeypatch.setattr(torch, "empty", forbidden)
    scene.backend.forward(replace(layer, index=1), *inputs, scene.cache, plan, out)
    assert_same(out.cpu(), scene.expected(spans, layer).out, scene, spans, "the second layer")
