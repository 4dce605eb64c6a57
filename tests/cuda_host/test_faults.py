"""Mistakes that a device would answer with wrong numbers, once in a while, are errors on the host, every time."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cuda_emulation import GuardedMemory, HostKernelError, HostLauncher, Order, arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDERS = [Order("forward"), Order("reverse"), *(Order("random", seed) for seed in range(3))]


@pytest.fixture
def memory() -> Iterator[GuardedMemory]:
    with GuardedMemory() as guarded:
        yield guarded


def results(launcher: HostLauncher, name: str, threads: int, x: torch.Tensor, grid: int = 1) -> list[torch.Tensor]:
    """What a kernel (x, y) computes, by order."""
    found = []
    for launcher.order in ORDERS:
        y = torch.zeros_like(x)
        launcher.kernel("faults.cu", f"faults::{name}")((grid, 1, 1), threads, 0, arguments(x, y))
        found.append(y)
    return found


def alike(found: list[torch.Tensor]) -> bool:
    return all(torch.equal(each.view(torch.int32), found[0].view(torch.int32)) for each in found)


@pytest.mark.parametrize(("name", "threads"), [("mirror", 256), ("neighbour", 32), ("reuse", 256), ("overwrite", 64)])
def test_a_missing_barrier_shows_in_the_results(launcher: HostLauncher, name: str, threads: int) -> None:
    x = torch.randn(threads * (4 if name == "overwrite" else 1))
    sound = results(launcher, f"{name}<true>", threads, x)
    assert alike(sound)
    assert not sound[0].isnan().any()
    broken = results(launcher, f"{name}<false>", threads, x)
    assert not alike([sound[0], *broken])


def test_sound_twins_compute_what_they_should(launcher: HostLauncher) -> None:
    x = torch.randn(256)
    assert torch.equal(results(launcher, "mirror<true>", 256, x)[0], x.flip(0))
    assert torch.equal(results(launcher, "neighbour<true>", 32, x[:32])[0], x[:32].roll(-1))
    assert torch.equal(results(launcher, "reuse<true>", 256, x)[0], x.flip(0) + x.flip(0) * 2)
    assert torch.equal(results(launcher, "overwrite<true>", 64, x)[0], x.roll(128))
    assert torch.equal(results(launcher, "fetch<0>", 64, x)[0], x)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order.schedule}{order.seed or ''}")
def test_vectors_are_read_behind_a_barrier_in_whatever_order(launcher: HostLauncher, order: Order) -> None:
    launcher.order = order
    x, y = torch.randn(256), torch.empty(256)
    for meet in (2, 3):
        launcher.kernel("faults.cu", f"faults::matrices_of_others<{meet}>")((2, 1, 1), 32, 0, arguments(x))
    launcher.kernel("faults.cu", "faults::vectors_of_another_warp<true>")((2, 1, 1), 64, 0, arguments(x, y))
    assert torch.equal(y, x.roll(128))
    said = "reads shared memory that thread .* has written, and no barrier lies between"
    for meet in (0, 1):
        assert re.search(said, fault(launcher, f"matrices_of_others<{meet}>", 32, arguments(x)))
    if order.schedule in ("forward", "reverse"):  # the other warp has written already; else NaN is read
        assert re.search(said, fault(launcher, "vectors_of_another_warp<false>", 64, arguments(x, y)))


@pytest.mark.parametrize("in_flight", [-1, 1])
def test_a_missing_wait_leaves_nan(launcher: HostLauncher, in_flight: int) -> None:
    forward, reverse, *random = results(launcher, f"fetch<{in_flight}>", 64, torch.randn(256))
    assert forward.isnan().all()
    assert reverse.isnan().all()
    assert any(0 < y.isnan().sum() < 256 for y in random), "copies may also arrive early"


def test_the_order_of_blocks_shows_in_the_results(launcher: HostLauncher) -> None:
    last = set()
    for launcher.order in ORDERS:
        y = torch.zeros(1, dtype=torch.int32)
        launcher.kernel("faults.cu", "faults::last_block")((10, 1, 1), 32, 0, arguments(y))
        last.add(y.item())
    assert len(last) > 2


# kernel: threads, what the report says when threads run in forward order
COLLECTIVE_FAULTS = {
    "part_of_the_block_meets": (128, "threads 0-63 wait at __syncthreads .faults.cu:", "64 have returned"),
    "meets_after_a_return": (128, "threads 0-69 wait at __syncthreads", "70 have returned; threads 71-127 run"),
    "two_barriers": (64, "threads meet at different barriers", "threads 0 wait at __syncthreads"),
    "half_a_warp_shuffles": (32, "a thread returns while lanes of its warp wait", "0-15 wait at a shuffle of lanes ff"),
    "shuffle_meets_vote": (32, "lanes of one mask meet at different places", "a vote of lanes ffffffff"),
    "shuffle_meets_barrier": (32, "no thread can go on", "0-15 wait at a shuffle", "16-31 wait at __syncthreads"),
    "reads_a_lane_outside": (32, "reads from lane 20, which takes no part in a shuffle of lanes 0000ffff"),
    "forgets_itself": (32, "does not name its own lane"),
    "half_a_warp_multiplies": (32, "mma_bf16 of lanes ffffffff", "have returned"),
}


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order.schedule}{order.seed or ''}")
@pytest.mark.parametrize("name", COLLECTIVE_FAULTS)
def test_who_meets_only_a_part_is_an_error_and_not_a_deadlock(launcher: HostLauncher, name: str, order: Order) -> None:
    threads, *said = COLLECTIVE_FAULTS[name]
    launcher.order = order
    kernel = launcher.kernel("faults.cu", f"faults::{name}")
    takes_output = bool(re.search(rf"{name}\(int\* y\)", (Path(__file__).parent / "kernels/faults.cu").read_text()))
    given = arguments(torch.zeros(64, dtype=torch.int32)) if takes_output else []
    with pytest.raises(HostKernelError) as caught:
        kernel((2, 1, 1), threads, 0, given)
    assert f"faults::{name}, block (" in str(caught.value)
    assert "faults.cu:" in str(caught.value)
    for pattern in said if order.schedule == "forward" else ():
        assert re.search(pattern, str(caught.value)), f"{pattern!r} is not in {caught.value}"


def fault(launcher: HostLauncher, name: str, threads: int, given: list[Any], shared_bytes: int = 0) -> str:
    with pytest.raises(HostKernelError) as caught:
        launcher.kernel("faults.cu", f"faults::{name}")((1, 1, 1), threads, shared_bytes, given)
    return str(caught.value)


def test_global_memory_is_guarded_at_both_ends(launcher: HostLauncher, memory: GuardedMemory) -> None:
    x, y = memory.like(torch.randn(1024), "x"), memory.empty((1024,), torch.float32, "y")
    reads = launcher.kernel("faults.cu", "faults::reads_global")
    reads((1, 1, 1), 32, 0, arguments(x, y, 1024 - 32))
    assert torch.equal(y[:32], x[-32:])
    said = fault(launcher, "reads_global", 32, arguments(x, y, 1024 - 31))
    assert "faults::reads_global, block (0, 0, 0), thread 31: an access outside of memory" in said
    assert "0 bytes beyond the end of x (4096 bytes)" in said
    assert "faults.cu:" in said
    assert "4 bytes before the begin of x" in fault(launcher, "reads_global", 32, arguments(x, y, -1))
    assert "0 bytes beyond the end of y" in fault(launcher, "writes_global", 1, arguments(y, 1024))
    assert "thread 31" in fault(launcher, "copies_global", 32, arguments(memory.like(torch.randn(124), "short")))


def test_what_is_written_in_front_of_a_tensor_is_found_afterwards(
    launcher: HostLauncher, memory: GuardedMemory
) -> None:
    y = memory.empty((5,), torch.float32, "y")
    launcher.kernel("faults.cu", "faults::writes_global")((1, 1, 1), 5, 0, arguments(y, 0))
    memory.check()
    launcher.kernel("faults.cu", "faults::writes_global")((1, 1, 1), 1, 0, arguments(y, -2))
    with pytest.raises(AssertionError, match="8 bytes before the begin of y"):
        memory.check()


def test_null_is_no_memory(launcher: HostLauncher) -> None:
    import ctypes

    said = fault(launcher, "writes_global", 1, arguments(ctypes.c_void_p(None), 0))
    assert "an access outside of memory at (nil)" in said


def test_shared_memory_is_guarded_at_both_ends(launcher: HostLauncher) -> None:
    y = torch.zeros(1)
    dynamic, static = (launcher.kernel("faults.cu", f"faults::touches_{kind}") for kind in ("dynamic", "static"))
    for order in ORDERS:
        launcher.order = order
        dynamic((2, 1, 1), 32, 4096, arguments(y, 1023))
        static((2, 1, 1), 32, 0, arguments(y, 63))
    said = fault(launcher, "touches_dynamic", 32, arguments(y, 1024), 4096)
    assert "0 bytes beyond the end of dynamic shared memory (4096 bytes)" in said
    said = fault(launcher, "touches_static", 32, arguments(y, 65))
    assert "4 bytes beyond the end of static shared memory (256 bytes)" in said
    said = fault(launcher, "touches_dynamic", 32, arguments(y, -1), 4096)
    assert "4 bytes before the begin of dynamic" in said
    said = fault(launcher, "touches_static", 32, arguments(y, -3))
    assert "12 bytes before the begin of static shared memory were written to" in said
    said = fault(launcher, "touches_dynamic", 32, arguments(y, 1), 4)
    assert "0 bytes beyond the end of dynamic shared memory were written to" in said
    assert "dynamic" in fault(launcher, "touches_dynamic", 32, arguments(y, 0), 0)


def test_shared_memory_begins_as_nan_in_every_block(launcher: HostLauncher) -> None:
    y = torch.zeros(64)
    launcher.kernel("faults.cu", "faults::touches_static")((1, 1, 1), 32, 0, arguments(y, 3))
    launcher.kernel("faults.cu", "faults::reads_what_nobody_wrote")((3, 1, 1), 64, 0, arguments(y))
    assert y.isnan().all()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("loads_askew", "an access of 16 bytes at .* no multiple"),
        ("stores_askew", "an access of 16 bytes at .* no multiple"),
        ("copies_askew", "an access of 16 bytes at .* no multiple"),
        ("matrices_askew", "gives ldmatrix the address .* no multiple of 16"),
    ],
)
def test_wide_accesses_are_aligned(launcher: HostLauncher, memory: GuardedMemory, name: str, pattern: str) -> None:
    x, y = memory.like(torch.randn(64), "x"), memory.empty((64,), torch.float32, "y")
    given = {"loads_askew": (x, y), "stores_askew": (x, y), "copies_askew": (x,), "matrices_askew": ()}[name]
    kernel = launcher.kernel("faults.cu", f"faults::{name}")
    kernel((1, 1, 1), 32, 0, arguments(*given, 0))
    assert re.search(pattern, fault(launcher, name, 32, arguments(*given, 2)))


def test_copies_and_matrices_keep_to_shared_memory(launcher: HostLauncher, memory: GuardedMemory) -> None:
    x, y = memory.like(torch.randn(256), "x"), memory.empty((256,), torch.float32, "y")
    assert "outside shared memory" in fault(launcher, "copies_to_global", 1, arguments(x, y))
    assert "outside shared memory" in fault(launcher, "matrices_of_global", 32, arguments(x))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 processors trap a division by zero")
def test_a_division_by_zero_is_told(launcher: HostLauncher) -> None:
    y = torch.zeros(2, dtype=torch.int32)
    launcher.kernel("faults.cu", "faults::divides")((1, 1, 1), 1, 0, arguments(y, 7))
    assert y[0].item() == 14
    assert "division by zero" in fault(launcher, "divides", 1, arguments(y, 0))


def test_an_overrun_stack_is_told(launcher: HostLauncher) -> None:
    y = torch.zeros(2, dtype=torch.int32)
    launcher.kernel("faults.cu", "faults::recurses")((1, 1, 1), 1, 0, arguments(y, 20))
    assert "an access outside of memory" in fault(launcher, "recurses", 1, arguments(y, 1000))


def test_an_index_beyond_a_threads_own_array_is_found_where_asked_for(launcher: HostLauncher) -> None:
    y = torch.zeros(4)
    strict = HostLauncher(Path(__file__).parent / "kernels", sanitize=True)
    strict.kernel("faults.cu", "faults::indexes")((1, 1, 1), 1, 0, arguments(y, 3))
    assert y[0].item() == 4.0
    said = fault(strict, "indexes", 1, arguments(y, 4))
    assert "undefined behaviour" in said
    assert "faults.cu:" in said


def test_a_launch_after_a_fault_is_sound(launcher: HostLauncher) -> None:
    y = torch.zeros(256)
    fault(launcher, "touches_dynamic", 32, arguments(y, 1024), 4096)
    fault(launcher, "part_of_the_block_meets", 128, [])
    assert alike(results(launcher, "mirror<true>", 256, torch.randn(256)))
