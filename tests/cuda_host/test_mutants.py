"""The emulation sees what is wrong with a kernel: each barrier, wait or check that is taken out is missed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cuda_emulation import HostKernelError, HostLauncher
from cuda_emulation.checked import CheckedAttention
from cuda_emulation.mutants import Mutant, synchronisation
from paged_conformance.oracles.scene import Scene, block_bytes

from paged_core.api.allocator import BlockCopy
from paged_core.api.attention import AttentionNeed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLOAT, HALF = ("float32", "float32"), ("bfloat16", "bfloat16")


def scene_of(launcher: HostLauncher, types: tuple[str, str], head_dim: int, lengths: list[int]) -> Scene:
    need = AttentionNeed("cpu", *types, 4, 2, head_dim, 16, max_len=384, max_rows=8, token_budget=1024)
    need = replace(need, required=frozenset({"lse", "sliding_window", "fused_rope"}), windows=(20,))
    launcher.num_processors = 1000  # contexts are cut into as many ranges as there may be: 3
    scene = Scene(CheckedAttention(need, launcher), need, lengths)
    scene.tables = scene.tables[: len(lengths) + 1, : -(-lengths[0] // 16)].copy()  # ends with the first, the longest
    scene.poison()
    return scene


def prefills(launcher: HostLauncher) -> None:
    for types in (HALF, FLOAT):
        scene = scene_of(launcher, types, 48, [150, 70, 1])
        scene.check(scene.spans([0, 0, 0]), "prompts", replace(scene.layer, window=20))
        scene.check(scene.spans([0, 0, 0]), "prompts")


def decodes(launcher: HostLauncher) -> None:
    for types in (HALF, FLOAT):
        scene = scene_of(launcher, types, 48, [300, 200, 17])
        scene.step(scene.spans([0, 0, 0]))
        for window in (None, 20):
            scene.check(scene.spans([299, 199, 16]), "decodes", replace(scene.layer, window=window))
        scene.check(scene.spans([299, 200, 16])[::-1], "a decode whose last range is the last of all")


def padding(launcher: HostLauncher) -> None:
    scene = scene_of(launcher, FLOAT, 48, [20])
    batch = scene.batch(scene.spans([0]))
    batch.slots[:] = -1
    before = scene.bits()
    scene.forward(batch, scene.inputs(scene.spans([0])))
    assert (scene.bits() == before).all(), "negative slots are written nowhere"


def rotation(launcher: HostLauncher) -> None:
    scene = scene_of(launcher, FLOAT, 48, [20])
    scene.rotary_dim = 32
    scene.check(scene.spans([0]), "rotated", replace(scene.layer, rope=0))


def copies(launcher: HostLauncher) -> None:
    scene = scene_of(launcher, FLOAT, 48, [40])
    expected = block_bytes(scene.cache, 0)
    expected[1] = expected[5]
    scene.backend.copy_blocks([scene.cache], [BlockCopy(scene.num_blocks - 1, 1)])
    assert (block_bytes(scene.cache, 0) == expected).all(), "the last block is copied"


SCENES: dict[str, tuple[Callable[[HostLauncher], None], ...]] = {
    "decode.cu": (decodes,),
    "prefill.cu": (prefills,),
    "merge.cu": (decodes,),
    "write.cu": (padding, rotation),
    "copy.cu": (copies,),
    "tile.cuh": (prefills, decodes),
    "softmax.cuh": (prefills, decodes),
    "elements.cuh": (decodes,),
}
CHECKS = [
    Mutant("tile.cuh", "block = position < context.end ? __ldg", "block = true ? __ldg"),
    Mutant("tile.cuh", "valid = position + step < context.end && ", "valid = "),
    Mutant("tile.cuh", " && dim + pass * WIDTH < context.head_dim;", ";"),
    Mutant("tile.cuh", "row < num_rows && dim < head_dim", "dim < head_dim"),
    Mutant("tile.cuh", "row < num_rows && dim < head_dim", "row < num_rows"),
    Mutant("decode.cu", "if (split >= ranges.used) return;", ""),
    Mutant("decode.cu", "minimum(length, begin + ranges.each)", "begin + ranges.each"),
    Mutant("decode.cu", "key >= oldest && key < end", "key >= oldest"),
    Mutant("decode.cu", "key >= oldest && key < end", "key < end"),
    Mutant("decode.cu", "ring + next % STAGES", "ring + i % STAGES"),
    Mutant("prefill.cu", "if (row >= num_rows) continue;", ""),
    Mutant("prefill.cu", "if (16 * i < head_dim) store", "store"),
    Mutant("prefill.cu", "age >= 0 && age < window", "age < window"),
    Mutant("prefill.cu", "age >= 0 && age < window", "age >= 0"),
    Mutant("prefill.cu", "ring + (slot ^ 1)", "ring + slot"),
    Mutant("softmax.cuh", "const float base = top == MINUS_INFINITY ? 0.0f : top;", "const float base = top;"),
    Mutant("merge.cu", "if (ranges.used == 1) return;", ""),
    Mutant("merge.cu", "split < ranges.used", "split < num_splits"),
    Mutant("merge.cu", "if (dim >= head_dim) break;", ""),
    Mutant("write.cu", "if (slot < 0) return;", ""),
    Mutant("write.cu", "if (head >= num_kv_heads) return;", ""),
    Mutant("copy.cu", "if (at < block_vectors) held", "held"),
    Mutant("copy.cu", "if (at < block_vectors) device::store16", "device::store16"),
]
SYNCHRONISING = ("decode.cu", "prefill.cu", "merge.cu", "write.cu", "copy.cu", "tile.cuh", "softmax.cuh")


def play(scenes: tuple[Callable[[HostLauncher], None], ...], launcher: HostLauncher) -> None:
    for scene in scenes:
        scene(launcher)


@pytest.mark.parametrize("mutant", [*synchronisation(SYNCHRONISING), *CHECKS], ids=str)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    mutant.apply(tmp_path)
    launcher = HostLauncher(tmp_path)
    with pytest.raises((HostKernelError, AssertionError)) as caught:
        play(SCENES[mutant.file], launcher)
    print(str(caught.value)[:300])


@pytest.mark.parametrize("scene", [prefills, decodes, padding, rotation, copies], ids=lambda scene: scene.__name__)
def test_the_kernels_as_they_are_pass(scene: Callable[[HostLauncher], None]) -> None:
    scene(HostLauncher())
