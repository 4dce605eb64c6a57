"""CowProvider: fitness, and a package that stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paged_alloc_cow import CowProvider

from paged_core.api.allocator import AllocatorNeed


@pytest.mark.parametrize(("block_size", "fits"), [(0, False), (1, True), (16, True), (256, True), (257, False)])
def test_block_sizes_from_1_to_256_fit(block_size, fits):
    fit = CowProvider().probe(AllocatorNeed(0, 0, block_size, 8, 64))
    assert fit.ok == fits
    assert fits or f"block size {block_size} is outside 1..256" in fit.reasons


def test_a_capability_it_lacks_is_a_reason():
    need = AllocatorNeed(8, 0, 16, 8, 64, required=frozenset({"reserves_ahead", "swap"}))
    assert CowProvider().probe(need).reasons == ("alloc_cow does not have the capability 'reserves_ahead'",)


@pytest.mark.parametrize("package", ["alloc_cow", "sched_fcfs", "preempt_swap", "preempt_recompute"])
def test_importing_a_plugin_is_light(package):
    program = f"import sys, paged_{package}; print([m for m in ('torch', 'triton', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_tables_are_int32_and_cover_the_longest_sequence(bench):
    world = bench(block_size=16, max_rows=3, max_len=65)
    assert world.alloc.tables.dtype == "int32"
    assert world.alloc.tables.shape == (3, 5)
