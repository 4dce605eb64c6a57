"""Attention and blocks: layouts, batched copies, swaps, and offsets beyond 32 bits."""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from paged_conformance.cases import BLOCK_SIZES, CODES, E4M3, ELEMENT_TYPES, ElementType
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.scene import Scene, block_bytes, cache_types, cached_need, plain_need
from paged_core.api.allocator import BlockCopy, SwapPair

if TYPE_CHECKING:
    from torch import Tensor

    from paged_conformance.candidate import Candidate
    from paged_core.api.attention import KVLayout

pytestmark = layer("behaviour")
NUM_LAYERS = 5
MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # the constant is in the mmap module from Python 3.13 on


@pytest.mark.parametrize("block_size", BLOCK_SIZES, ids="block{}".format)
def test_a_layout_states_its_shape_and_bytes(attn: Candidate, block_size: int) -> None:
    for element in cache_types(attn):
        need = replace(cached_need(attn, element), block_size=block_size)
        if not attn.fit(need).ok:
            continue
        backend = attn.create(need)
        small, large = backend.layout(3), backend.layout(11)
        assert small.shape[small.block_axis] == 3, f"shape[block_axis] counts blocks: {small}"
        rest = [tuple(n for i, n in enumerate(each.shape) if i != each.block_axis) for each in (small, large)]
        assert rest[0] == rest[1], f"pools differ in the number of blocks only: {small} and {large}"
        size = getattr(torch, small.dtype).itemsize
        stated, true = large.bytes_per_block, math.prod(rest[1]) * size
        assert stated == true, f"bytes_per_block says {stated}, the shape {large.shape} of {large.dtype} has {true}"
        least = 2 * block_size * need.num_kv_heads * need.head_dim * element_size(need.kv_dtype)
        assert stated >= least, f"a block of {block_size} slots holds {least} bytes of keys and values, not {stated}"


def element_size(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size


def pools(scene: Scene, sizes: list[int], first_seed: int) -> list[Tensor]:
    """One cache of noise a layer."""
    return [scene.new_cache(size, seed=first_seed + index) for index, size in enumerate(sizes)]


def contents(scene: Scene, caches: list[Tensor]) -> list[Tensor]:
    return [block_bytes(cache, scene.backend.layout(1).block_axis) for cache in caches]


def assert_layers(actual: list[Tensor], expected: list[Tensor], law: str) -> None:
    for index, (now, wanted) in enumerate(zip(actual, expected, strict=True)):
        wrong = torch.nonzero((now != wanted).any(1)).flatten().tolist()
        assert not wrong, f"{law}: in layer {index} of {len(actual)} blocks {wrong} hold the wrong bytes"


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("num_copies", [0, 1, 2, 7])
def test_copies_reach_their_targets_in_every_layer_and_nothing_else(
    attn: Candidate, num_copies: int, block_size: int
) -> None:
    """Sources may repeat (one parent, several children); the contract excludes chains."""
    need = replace(plain_need(attn), block_size=block_size)
    scene = Scene(attn.create(need), need, [1])
    caches = pools(scene, [20] * NUM_LAYERS, 0)
    copies = [BlockCopy(src, dst) for src, dst in zip([3, 3, 0, 9, 19, 3, 1], [8, 2, 18, 10, 4, 17, 5], strict=True)]
    copies = copies[:num_copies]
    expected = contents(scene, caches)
    for wanted in expected:
        for src, dst in copies:
            wanted[dst] = wanted[src]
    scene.backend.copy_blocks(caches, copies)
    assert_layers(contents(scene, caches), expected, f"copying {[tuple(copy) for copy in copies]}")


def test_a_copied_block_is_read_like_its_source(attn: Candidate) -> None:
    need = plain_need(attn)
    scene = Scene(attn.create(need), need, [40])
    scene.step([replace(scene.spans([0])[0], count=39)])
    row, source = scene.rows[0], scene.blocks(0)[-1]
    target = next(block for block in range(scene.num_blocks) if block not in scene.blocks(0))
    scene.backend.copy_blocks([scene.cache], [BlockCopy(int(source), target)])
    scene.tables[row, 2] = target
    scene.check(scene.spans([39]), "a fork that copied its last block reads the parent's keys and values")


@requires("swap")
@pytest.mark.parametrize("num_pairs", [0, 1, 6])
def test_swap_out_and_in_keeps_every_bit_of_every_layer(attn: Candidate, num_pairs: int) -> None:
    need = plain_need(attn, ("swap",))
    scene = Scene(attn.create(need), need, [1])
    device = pools(scene, [20] * NUM_LAYERS, 0)
    device[1].fill_(float("nan"))
    host = [cache.cpu() for cache in pools(scene, [8] * NUM_LAYERS, 50)]
    homes, shelters, returns = [3, 19, 0, 7, 12, 5], [0, 7, 4, 2, 6, 1], [1, 2, 19, 4, 8, 10]
    before, expected = contents(scene, device), contents(scene, host)
    out = [SwapPair(src, dst) for src, dst in zip(homes, shelters, strict=True)][:num_pairs]
    for wanted, source in zip(expected, before, strict=True):
        for src, dst in out:
            wanted[dst] = source[src]
    scene.backend.swap_blocks(device, host, out)
    assert_layers(contents(scene, host), expected, f"swapping {[tuple(pair) for pair in out]} out to the host")
    assert_layers(contents(scene, device), before, "a swap-out only reads the device's blocks")
    back = [SwapPair(src, dst) for src, dst in zip(shelters, returns, strict=True)][:num_pairs]
    wanted_device = [each.clone() for each in before]
    for wanted, source in zip(wanted_device, expected, strict=True):
        for src, dst in back:
            wanted[dst] = source[src]
    scene.backend.swap_blocks(host, device, back)
    assert_layers(contents(scene, device), wanted_device, f"swapping {[tuple(pair) for pair in back]} back in")


@requires("swap")
def test_a_sequence_decodes_on_after_a_swap_to_other_blocks(attn: Candidate) -> None:
    need = plain_need(attn, ("swap",))
    scene = Scene(attn.create(need), need, [40, 60])
    scene.step([replace(span, count=39) for span in scene.spans([0, 0])][:1])
    host = scene.new_cache(3).cpu()
    old = scene.blocks(0).tolist()
    new = [int(block) for block in scene.blocks(1)[:3]]
    scene.backend.swap_blocks([scene.cache], [host], [SwapPair(src, dst) for dst, src in enumerate(old)])
    scene.poison()
    scene.backend.swap_blocks([host], [scene.cache], [SwapPair(src, dst) for src, dst in enumerate(new)])
    scene.tables[scene.rows[0], :3] = new
    scene.check(scene.spans([39, 60]), "a sequence that came back to other blocks goes on as if it had stayed")


def huge_cache(layout: KVLayout, device: str) -> Tensor:
    """Zeros that exist only where they are touched: address space on a CPU, memory on a GPU.

    In front lie 2^31 elements of no use, so that an offset wrapped to a negative one goes astray without a crash.
    """
    dtype = getattr(torch, layout.dtype)
    guard, elements = 2**31, math.prod(layout.shape)
    num_bytes = (guard + elements) * dtype.itemsize
    if device == "cpu":
        try:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        except (OSError, ValueError) as error:
            pytest.skip(f"{num_bytes} bytes of address space cannot be had here: {error}")
        flat = torch.frombuffer(memory, dtype=dtype)
    else:
        free, _ = torch.cuda.mem_get_info()
        if free < num_bytes:
            pytest.skip(f"{num_bytes} bytes of GPU memory are needed to pass 32 bits, {free} are free")
        flat = torch.zeros(guard + elements, dtype=dtype, device=device)
    return flat[guard:].view(layout.shape)


@pytest.mark.parametrize("types", [ELEMENT_TYPES, (CODES,), (E4M3,)], ids=["elements", "codes", "e4m3"])
def test_offsets_beyond_32_bits_are_not_wrapped(attn: Candidate, types: tuple[ElementType, ...]) -> None:
    """A pool whose keys alone pass 2^31 elements; block numbers at its end, in its middle and at its start."""
    declared = [element for element in types if attn.has(element.capability)]
    if not declared:
        refused = cached_need(attn, types[0])
        assert not attn.fit(refused).ok, f"contract: {attn.name} accepts {refused.kv_dtype} without declaring it"
        return
    need = cached_need(attn, min(declared, key=lambda each: element_size(each.dtype)))
    scene = Scene(attn.create(need), need, [40, 60])
    per_block = math.prod(scene.backend.layout(1).shape)
    num_blocks = 2**32 // per_block + 8
    layout = scene.backend.layout(num_blocks)
    scene.cache = huge_cache(layout, attn.device)
    middle = 2**31 // per_block
    scene.tables[scene.rows[0], :3] = [num_blocks - 1, 0, middle + 1]
    scene.tables[scene.rows[1], :4] = [1, num_blocks - 3, num_blocks - 7, middle]
    law = f"offsets into a pool of {num_blocks} blocks of {per_block} elements need more than 32 bits"
    scene.check(scene.spans([0, 0]), law)
    scene.check(scene.spans([39, 59]), law)
    written = scene.cache.select(layout.block_axis, num_blocks - 1)
    assert (written != 0).any(), f"{law}: nothing was written to the last block"
    scene.backend.copy_blocks([scene.cache], [BlockCopy(num_blocks - 1, num_blocks - 2)])
    scene.tables[scene.rows[0], 0] = num_blocks - 2
    scene.check(scene.spans([39, 60]), f"{law} in block copies too")
