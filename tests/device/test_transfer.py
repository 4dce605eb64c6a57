from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import torch

from paged_core.api.allocator import SwapPair
from paged_core.device.transfer import Transfers
from paged_core.testing.accelerator import FakeAccelerator
from paged_core.testing.attention import copy_blocks

LAYERS, BLOCKS, HOST_BLOCKS, SHAPE = 3, 12, 10, (2, 4)
BLOCK_BYTES = 2 * 4 * 4


def pool(blocks: int, first: float) -> list[torch.Tensor]:
    return [
        torch.arange(first, first + blocks * 8, dtype=torch.float32).view(blocks, *SHAPE) + 1000 * layer
        for layer in range(LAYERS)
    ]


class Story:
    """The same random moves and writes on a device that keeps work back and, at once, on plain arrays."""

    def __init__(self, device: FakeAccelerator, seed: int, staging_blocks: int = 4) -> None:
        self.device, self.random = device, random.Random(seed)
        self.pool, self.host = pool(BLOCKS, 0), [device.pinned((HOST_BLOCKS, *SHAPE), torch.float32) for _ in range(3)]
        for layer, values in zip(self.host, pool(HOST_BLOCKS, 5000), strict=True):
            layer.copy_(values)
        self.expected = [layer.clone() for layer in self.pool], [layer.clone() for layer in self.host]
        self.seen: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self.transfers = Transfers(
            torch.device("cuda"), copy_blocks, device, staging_bytes=staging_blocks * LAYERS * BLOCK_BYTES
        )

    def step(self) -> None:
        """Swap-outs, swap-ins, writes to blocks that were swapped out, a look at those that were swapped in."""
        device_pool, host_pool = self.expected
        out = self.pairs(BLOCKS, HOST_BLOCKS)
        self.swap(self.pool, self.host, device_pool, host_pool, out)
        self.write([src for src, _ in out])
        back = self.pairs(HOST_BLOCKS, BLOCKS)
        self.swap(self.host, self.pool, host_pool, device_pool, back)
        self.look([dst for _, dst in back])

    def pairs(self, sources: int, targets: int) -> list[SwapPair]:
        count = self.random.randrange(1, 8)
        begin = self.random.randrange(targets - count)  # half of the time in one run
        chosen = (
            range(begin, begin + count) if self.random.random() < 0.5 else self.random.sample(range(targets), count)
        )
        return [SwapPair(*pair) for pair in zip(self.random.sample(range(sources), count), chosen, strict=True)]

    def swap(self, sources, targets, expected_sources, expected_targets, pairs) -> None:
        self.transfers.swap(sources, targets, pairs)
        copy_blocks(expected_sources, expected_targets, np.array(pairs))

    def write(self, blocks) -> None:
        value = self.random.random()
        self.device.launch(lambda: [layer.index_fill_(0, torch.tensor(blocks), value) for layer in self.pool])
        for layer in self.expected[0]:
            layer[blocks] = value

    def look(self, blocks) -> None:
        seen: list[torch.Tensor] = []
        self.device.launch(lambda: seen.extend(layer[blocks] for layer in self.pool))
        self.seen.append((seen, [layer[blocks].clone() for layer in self.expected[0]]))

    def is_right(self) -> bool:
        self.transfers.wait()
        host_right = all(map(torch.equal, self.host, self.expected[1]))
        self.device.synchronize()
        looks_right = all(all(map(torch.equal, seen, expected)) for seen, expected in self.seen)
        return host_right and looks_right and all(map(torch.equal, self.pool, self.expected[0]))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_order_the_events_allow_blocks_arrive_as_if_one_after_the_other(seed, monkeypatch):
    monkeypatch.setattr("paged_core.device.transfer._LEAST_RUN_BYTES", 2 * LAYERS * BLOCK_BYTES // 2)
    story = Story(FakeAccelerator(seed), seed)
    for _ in range(6):
        story.step()
    assert story.is_right()


def test_without_its_waits_it_would_go_wrong():
    right = []
    for seed in range(10):
        story = Story(FakeAccelerator(seed, deaf=True), seed)
        for _ in range(6):
            story.step()
        right.append(story.is_right())
    assert not any(right)


@pytest.mark.parametrize("forgotten", range(4))
def test_each_single_wait_is_needed(forgotten, monkeypatch):
    """The waits of out and back, counted from the start of each call: two of out, two of back."""
    from paged_core.testing import accelerator

    wait = accelerator.FakeEvent.wait
    calls = []
    order = {"out": (0, 1), "back": (2, 3)}

    def some_wait(event):
        calls.append(event)
        if order[direction[0]][(len(calls) - 1) % 2] != forgotten:
            wait(event)

    direction = ["out"]
    monkeypatch.setattr(accelerator.FakeEvent, "wait", some_wait)
    from paged_core.device import transfer

    for name in ("out", "back"):
        original = getattr(transfer._Road, name)

        def turn(self, *args, _name=name, _original=original):
            direction[0] = _name
            calls.clear()
            return _original(self, *args)

        monkeypatch.setattr(transfer._Road, name, turn)
    right = []
    for seed in range(30):
        story = Story(FakeAccelerator(seed), seed)
        for _ in range(6):
            story.step()
        right.append(story.is_right())
    assert not all(right)


def test_neighbours_travel_together_and_scattered_blocks_in_one_launch(monkeypatch):
    monkeypatch.setattr("paged_core.device.transfer._LEAST_RUN_BYTES", 2 * BLOCK_BYTES)
    device = FakeAccelerator()
    story = Story(device, 0, staging_blocks=2 * BLOCKS)
    story.transfers.swap(story.pool, story.host, [SwapPair(5, 3), SwapPair(0, 4), SwapPair(9, 2), SwapPair(1, 7)])
    assert device.num_copies == 2 * LAYERS  # 2 .. 4 and 7
    story.transfers.swap(story.pool, story.host, [SwapPair(5, 0), SwapPair(0, 6), SwapPair(9, 8)])
    assert device.num_copies == 2 * LAYERS
    device.synchronize()
    assert torch.equal(story.host[1][[2, 3, 4, 7]], story.pool[1][[9, 5, 0, 1]])
    assert torch.equal(story.host[2][[0, 6, 8]], story.pool[2][[5, 0, 9]])


def test_large_swaps_go_in_pieces_of_bounded_staging():
    story = Story(FakeAccelerator(1), 1, staging_blocks=2)
    pairs = [SwapPair(i, i) for i in range(HOST_BLOCKS)]
    story.swap(story.pool, story.host, *story.expected, pairs)
    assert story.is_right()
    staged = sum(layer.nbytes for piece in story.transfers._road._pieces for layer in piece.layers)
    assert staged == 2 * LAYERS * BLOCK_BYTES


def test_a_host_pool_that_is_not_pinned_is_copied_at_once_and_the_reason_is_logged_once(caplog):
    device = FakeAccelerator()
    host = [device.pageable(torch.zeros(HOST_BLOCKS, *SHAPE)) for _ in range(LAYERS)]
    transfers, blocks = Transfers(torch.device("cuda"), copy_blocks, device), pool(BLOCKS, 0)
    with caplog.at_level(logging.WARNING, "paged_core.device"):
        transfers.swap(blocks, host, [SwapPair(3, 0), SwapPair(4, 1), SwapPair(9, 5)])
        transfers.swap(host, blocks, [SwapPair(0, 7)])
    assert torch.equal(host[2][[0, 1, 5]], blocks[2][[3, 4, 9]])
    assert torch.equal(blocks[0][7], blocks[0][3])
    assert [record.message for record in caplog.records] == [
        "the host's KV pool is not pinned: blocks are swapped while everything else waits"
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_on_the_cpu_blocks_are_copied_at_once_without_the_kernel(dtype):
    def never(*_):
        raise AssertionError("the kernel was called")

    transfers = Transfers(torch.device("cpu"), never)
    blocks, host = [layer.to(dtype) for layer in pool(BLOCKS, 0)], [layer.to(dtype) for layer in pool(HOST_BLOCKS, 9)]
    transfers.swap(blocks, host, [SwapPair(3, 0), SwapPair(9, 5)])
    assert torch.equal(host[1].view(torch.uint8)[[0, 5]], blocks[1].view(torch.uint8)[[3, 9]])
    transfers.swap(blocks, host, [])
    transfers.wait()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_blocks_return_from_the_host_as_they_left():
    device = torch.device("cuda")

    def copy(sources, targets, pairs):
        for source, target in zip(sources, targets, strict=True):
            for read, write in pairs.tolist():
                target[write].copy_(source[read], non_blocking=True)

    blocks = [torch.randn(64, 2, 8, 16, 128, device=device) for _ in range(4)]
    host = [torch.empty(80, 2, 8, 16, 128, pin_memory=True) for _ in range(4)]
    before = [layer.clone() for layer in blocks]
    transfers = Transfers(device, copy, staging_bytes=1 << 24)
    for shuffled in (False, True):
        places = random.Random(0).sample(range(80), 64) if shuffled else range(64)
        transfers.swap(blocks, host, [SwapPair(i, place) for i, place in enumerate(places)])
        for layer in blocks:
            layer.fill_(torch.nan)
        transfers.swap(host, blocks, [SwapPair(place, i) for i, place in enumerate(places)])
        transfers.wait()
        assert all(map(torch.equal, blocks, before))
