"""Sound kernels compute on the host what they would on a device, in every order of threads and blocks."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cuda_emulation import GuardedMemory, HostLauncher, Order, arguments

ORDERS = [Order("forward"), Order("reverse"), *(Order("random", seed) for seed in range(3))]
orders = pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order.schedule}{order.seed or ''}")


@orders
def test_a_sum_by_shuffles_and_shared_memory(launcher: HostLauncher, order: Order) -> None:
    launcher.order = order
    x = torch.randint(-50, 50, (7, 128)).float()
    with GuardedMemory() as memory:
        x, sums = memory.like(x, "x"), memory.empty((7,), torch.float32, "sums")
        launcher.kernel("basics.cu", "basics::sum")((7, 1, 1), 128, 0, arguments(x, sums))
        assert sums.tolist() == x.sum(1).tolist()
        memory.check()


@orders
@pytest.mark.parametrize("shape", [(32, 32), (70, 45), (1, 100)])
def test_a_transpose_through_dynamic_shared_memory(
    launcher: HostLauncher, order: Order, shape: tuple[int, int]
) -> None:
    launcher.order = order
    with GuardedMemory() as memory:
        x, y = memory.like(torch.randn(shape), "x"), memory.empty((shape[1], shape[0]), torch.float32, "y")
        grid = (-(-shape[1] // 32), -(-shape[0] // 32), 1)
        launcher.kernel("basics.cu", "basics::transpose")(grid, 256, 32 * 33 * 4, arguments(x, y, *shape))
        assert torch.equal(y, x.T)
        memory.check()


@orders
def test_shuffles_and_votes_answer_as_on_a_device(launcher: HostLauncher, order: Order) -> None:
    launcher.order = order
    x = torch.arange(32, dtype=torch.int32) * 3 + 1
    y = torch.full((10, 32), -1, dtype=torch.int32)
    launcher.kernel("basics.cu", "basics::exchange")((1, 1, 1), 32, 0, arguments(x, y))
    values, lanes = x.tolist(), range(32)
    votes = sum(1 << lane for lane in lanes if values[lane] > 50)
    expected = [
        [values[5]] * 32,
        [values[lane // 8 * 8 + 3] for lane in lanes],
        [values[lane ^ 16] for lane in lanes],
        [values[lane + 4 if lane + 4 < 32 else lane] for lane in lanes],
        [values[lane + 4 if lane % 8 < 4 else lane] for lane in lanes],
        [values[lane - 2 if lane >= 2 else lane] for lane in lanes],
        [votes - (1 << 32) if votes >= 1 << 31 else votes] * 32,
        [1] * 32,
        [0] * 32,
        [0xFFFF] * 16 + [values[20]] * 16,
    ]
    assert y.tolist() == expected


@orders
def test_atomics_lose_nothing(launcher: HostLauncher, order: Order) -> None:
    launcher.order = order
    x = torch.randint(0, 9, (1000,), dtype=torch.int32)
    counts, largest = torch.zeros(9, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launcher.kernel("basics.cu", "basics::count")((3, 1, 1), 96, 0, arguments(x, counts, largest, 1000))
    assert counts.tolist() == torch.bincount(x, minlength=9).tolist()
    assert largest.item() == x.max().item()


@orders
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_copies_ahead_arrive_at_the_wait_for_their_group(launcher: HostLauncher, order: Order, steps: int) -> None:
    launcher.order = order
    with GuardedMemory() as memory:
        x = memory.like(torch.randint(-50, 50, (steps, 64, 4)).float(), "x")
        sums = memory.empty((64,), torch.float32, "sums")
        launcher.kernel("basics.cu", "basics::stream")((1, 1, 1), 64, 2 * 64 * 16, arguments(x, sums, steps))
        assert sums.tolist() == x.sum((0, 2)).roll(-1).tolist()


def test_every_block_and_thread_runs_once_and_knows_its_place(launcher: HostLauncher) -> None:
    x = torch.full((4, 3, 2, 40), -1, dtype=torch.int32)
    launcher.kernel("basics.cu", "basics::where")((2, 3, 4), 40, 0, arguments(x))
    z, y, block, thread = (torch.arange(size) for size in x.shape)
    expected = block[:, None] + 10 * y[:, None, None] + 100 * z[:, None, None, None] + 1000 * thread
    assert torch.equal(x.long(), expected)


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int32), ("second", ctypes.c_float))


def test_parameters_arrive_by_type(launcher: HostLauncher) -> None:
    a, result = torch.tensor([1.0]), torch.zeros(1, dtype=torch.float64)
    kernel = launcher.kernel("basics.cu", "basics::parameters")
    kernel((1, 1, 1), 1, 0, arguments(a, 2.0, 3, ctypes.c_int64(2**40), Pair(5, 6.0), result))
    assert result.item() == 1 + 20 + 300 + 1000 * 2**40 + 50_000 + 600_000


def test_arguments_of_another_type_are_refused(launcher: HostLauncher) -> None:
    a, result = torch.tensor([1.0]), torch.zeros(1, dtype=torch.float64)
    kernel = launcher.kernel("basics.cu", "basics::parameters")
    sound = arguments(a, 2.0, 3, ctypes.c_int64(4), Pair(5, 6.0), result)
    for i, wrong in ((0, 1), (1, 2), (2, 3.0), (3, 4), (4, 5), (5, 6.0)):
        with pytest.raises(ValueError, match=f"parameter {i} is"):
            kernel((1, 1, 1), 1, 0, [*sound[:i], *arguments(wrong), *sound[i + 1 :]])
    with pytest.raises(ValueError, match="takes 6 arguments, not 5"):
        kernel((1, 1, 1), 1, 0, sound[:5])


@pytest.mark.parametrize(
    ("grid", "threads", "shared_bytes"),
    [((0, 1, 1), 32, 0), ((1, 65536, 1), 32, 0), ((1, 1, 1), 1025, 0), ((1, 1, 1), 0, 0), ((1, 1, 1), 32, 200_000)],
)
def test_launches_beyond_a_device_are_refused(
    launcher: HostLauncher, grid: tuple[int, int, int], threads: int, shared_bytes: int
) -> None:
    with pytest.raises(ValueError, match="basics::where"):
        launcher.kernel("basics.cu", "basics::where")(grid, threads, shared_bytes, arguments(torch.zeros(1)))


def test_a_source_that_does_not_compile_is_told_with_the_compilers_words(launcher: HostLauncher) -> None:
    with pytest.raises(RuntimeError, match="nothing_of_this_name"):
        launcher.kernel("basics.cu", "basics::nothing_of_this_name")((1, 1, 1), 1, 0, [])


WITHOUT_ASSEMBLY = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cuda_emulation import HostLauncher, arguments, build
build.COMMON += ("-DPAGED_HOST_UCONTEXT",)
x, sums = (ctypes.c_float * 256)(*range(256)), (ctypes.c_float * 2)()
addresses = [ctypes.c_void_p(ctypes.addressof(each)) for each in (x, sums)]
HostLauncher(Path(sys.argv[1]) / "kernels").kernel("basics.cu", "basics::sum")((2, 1, 1), 128, 0, addresses)
assert list(sums) == [sum(range(128)), sum(range(128, 256))], list(sums)
"""


def test_processors_without_an_assembly_switch_use_ucontext() -> None:
    command = [sys.executable, "-c", WITHOUT_ASSEMBLY, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
