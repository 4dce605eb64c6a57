"""Moving blocks, against the figures of the paper's section 7.3."""

from __future__ import annotations

import pytest

from paged_core.costs.transfers import Transfers


def opt_13b(block_size: int) -> Transfers:
    return Transfers(block_size * 819_200, 80, 1.555e12)


@pytest.mark.parametrize(("block_size", "milliseconds"), [(1, 134), (16, 28), (256, 21)])
def test_320_tokens_out_and_in_take_what_the_paper_shows(block_size: int, milliseconds: float) -> None:
    num_blocks = -(-320 // block_size)
    tokens = 320 / (num_blocks * block_size)  # the last block is moved whole
    both_ways = 2 * opt_13b(block_size).swap_s(num_blocks) * 1000
    assert both_ways * tokens == pytest.approx(milliseconds, abs=2)


def test_small_blocks_cost_calls_and_large_ones_bytes() -> None:
    times = [opt_13b(size).swap_s(256 // size) for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(80 * 2.2e-6 + 256 * 819_200 / 25e9)


def test_copies_read_and_write_on_the_device() -> None:
    assert opt_13b(16).copy_s(0) == 0
    assert opt_13b(16).copy_s(3) == pytest.approx(80 * 2.2e-6 + 3 * 2 * 16 * 819_200 / 1.555e12)
