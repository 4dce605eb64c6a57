"""Batches that the conformance suite asks in float32 only, in every pair of element types: windows, softcaps, splits.

The backend is the checked one: several orders of threads with equal bits, guard pages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cuda_emulation import HostLauncher
from cuda_emulation.checked import CheckedAttention
from paged_conformance.oracles.scene import Scene, Span

from paged_core.api.attention import AttentionLayer, AttentionNeed

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = ("float32", "bfloat16", "float16")
TYPES = [(dtype, kv) for dtype in DTYPES for kv in (dtype, "float8_e4m3fn")]
SANITIZED = [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float8_e4m3fn")]
"""Undefined behaviour is looked for too: the guarded tensors are aligned as little as a kernel may expect."""
FEATURES = frozenset({"lse", "sliding_window", "softcap", "fused_rope", "graphs"})
types = pytest.mark.parametrize(("dtype", "kv_dtype"), TYPES, ids=[f"{d}-{kv}" for d, kv in TYPES])


def need_of(dtype: str, kv_dtype: str, head_dim: int, heads: tuple[int, int], block_size: int = 16) -> AttentionNeed:
    sizes = {"max_len": 1024, "max_rows": 16, "token_budget": 2048}
    need = AttentionNeed("cpu", dtype, kv_dtype, *heads, head_dim, block_size, **sizes)
    return replace(need, required=FEATURES, softcap=30.0, windows=(50,))


def scene_of(need: AttentionNeed, lengths: Sequence[int], seed: int = 0, launcher: HostLauncher | None = None) -> Scene:
    scene = Scene(CheckedAttention(need, launcher), need, lengths, seed)
    scene.poison()
    return scene


def mixed(scene: Scene, layer: AttentionLayer) -> None:
    """Prompts whole and in chunks, then decodes beside the rest of a chunk, then decodes alone."""
    lengths = scene.lengths
    begun = [length // 2 if i % 2 else max(0, length - 1) for i, length in enumerate(lengths)]
    first = [Span(i, 0, count) for i, count in enumerate(begun) if count]
    scene.check(first, "prompts and chunks equal the oracle", layer)
    scene.check(scene.spans(begun), "decodes beside chunks equal the oracle", layer)
    scene.check(scene.spans([length - 1 for length in lengths]), "decodes equal the oracle", layer)


@types
def test_windows_softcaps_and_rotation_in_every_type(dtype: str, kv_dtype: str) -> None:
    narrow = kv_dtype == "float8_e4m3fn"
    launcher = HostLauncher(sanitize=(dtype, kv_dtype) in SANITIZED)
    scene = scene_of(need_of(dtype, kv_dtype, 64, (6, 2)), [1, 17, 40, 131, 150], launcher=launcher)
    scene.rotary_dim = 32
    scales = ((0.5, 0.02), (0.01, 1.5)) if narrow else (1.0, 1.0)
    plain = AttentionLayer(0, 0.125, k_scale=scales[0], v_scale=scales[1])
    for layer in (plain, replace(plain, window=50, softcap=30.0, rope=0), replace(plain, window=7, rope=0)):
        mixed(scene, layer)


@types
@pytest.mark.parametrize(("head_dim", "heads"), [(48, (3, 3)), (128, (8, 1)), (256, (4, 2))], ids="{}".format)
def test_long_contexts_are_cut_and_merged(dtype: str, kv_dtype: str, head_dim: int, heads: tuple[int, int]) -> None:
    launcher = HostLauncher()
    launcher.num_processors = 1000
    scene = scene_of(need_of(dtype, kv_dtype, head_dim, heads, 8), [300, 129], launcher=launcher)
    scene.step(scene.spans([0, 0]))
    launcher.launches.clear()
    for layer in (scene.layer, replace(scene.layer, window=140)):
        scene.check(scene.spans([299, 128]), "decodes that are cut into ranges equal the oracle", layer)
    assert any("merge" in name for name in launcher.launches), "contexts were cut"


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("heads", [(20, 1), (40, 2)], ids="{}".format)
def test_groups_of_more_heads_than_a_matrix_has_rows(heads: tuple[int, int], kv_dtype: str) -> None:
    scene = scene_of(need_of("bfloat16", kv_dtype, 64, heads), [1, 33, 70])
    mixed(scene, replace(scene.layer, window=50))
