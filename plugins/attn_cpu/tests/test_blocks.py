"""Block copies and host swap: all layers, all pairs, exact bytes."""

from __future__ import annotations

import pytest
import torch

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.errors import PluginContractError


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block_size", [1, 16])
def test_copy_blocks_moves_whole_blocks_in_every_layer(world, dtype, block_size):
    backend = world([(1, 1)], kv_dtype=dtype, block_size=block_size).backend
    caches = [torch.randn(backend.layout(9).shape).to(getattr(torch, dtype)) for _ in range(3)]
    before = [cache.clone() for cache in caches]
    backend.copy_blocks(caches, [BlockCopy(2, 5), BlockCopy(2, 0), BlockCopy(8, 7)])
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache, old[[2, 1, 2, 3, 4, 2, 6, 8, 8]])


@pytest.mark.parametrize("num_pairs", [1, 60])
def test_swap_out_and_in_restores_every_byte(world, num_pairs):
    backend = world([(1, 1)], block_size=16, head_dim=64).backend
    device = [torch.randn(backend.layout(70).shape) for _ in range(4)]
    host = [torch.full(backend.layout(64).shape, float("nan")) for _ in range(4)]
    before = [cache.clone() for cache in device]
    out = [SwapPair(69 - i, i) for i in range(num_pairs)]
    backend.swap_blocks(device, host, out)
    for cache in device:
        cache[70 - num_pairs :] = float("nan")
    backend.swap_blocks(host, device, [SwapPair(dst, src) for src, dst in out])
    assert all(torch.equal(cache, old) for cache, old in zip(device, before, strict=True))


def test_no_copies_is_no_work(world):
    backend = world([(1, 1)]).backend
    backend.copy_blocks([], [BlockCopy(0, 1)])
    backend.copy_blocks([torch.zeros(backend.layout(2).shape)], [])


@pytest.mark.parametrize("pair", [(0, 4), (4, 0), (-1, 0), (0, -1)])
def test_blocks_outside_the_pool_are_refused(world, pair):
    backend = world([(1, 1)]).backend
    with pytest.raises(PluginContractError, match="pools of 4 and 4"):
        backend.copy_blocks([torch.zeros(backend.layout(4).shape)], [BlockCopy(*pair)])


def test_caches_of_another_layout_are_refused(world):
    backend = world([(1, 1)]).backend
    source = torch.zeros(backend.layout(4).shape)
    with pytest.raises(PluginContractError, match="one layout"):
        backend.swap_blocks([source], [source.bfloat16()], [SwapPair(0, 0)])
    with pytest.raises(PluginContractError, match="one target a source"):
        backend.swap_blocks([source], [], [SwapPair(0, 0)])
    with pytest.raises(PluginContractError, match="contiguous"):
        backend.swap_blocks([source[::2]], [source[::2]], [SwapPair(0, 0)])
