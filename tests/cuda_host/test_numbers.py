"""Narrow numbers and matrix fragments of the emulation against torch: every code, every place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from cuda_emulation import arguments
from cuda_emulation.build import INCLUDE
from paged_attn_cuda.compile import SOURCES

if TYPE_CHECKING:
    from pathlib import Path

    from cuda_emulation import HostLauncher
    from torch import Tensor

Call = Callable[..., None]
HALVES = [torch.bfloat16, torch.float16]
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3"}
THREADS = 256


@pytest.fixture
def call(launcher: HostLauncher) -> Call:
    """Runs numbers::`name` over `num` numbers, one a thread."""

    def run(name: str, num: int, *values: Tensor | int) -> None:
        assert num % THREADS == 0
        launcher.kernel("numbers.cu", f"numbers::{name}")((num // THREADS, 1, 1), THREADS, 0, arguments(*values))

    return run


def same(got: Tensor, expected: Tensor) -> bool:
    """Equal to the bit, but any NaN is as good as another."""
    nan = expected.isnan()
    return torch.equal(got.isnan(), nan) and torch.equal(got[~nan].view(torch.int32), expected[~nan].view(torch.int32))


def all_codes(dtype: torch.dtype) -> Tensor:
    num = 256 if dtype.itemsize == 1 else 65536
    return torch.arange(num).to(torch.uint8 if num == 256 else torch.uint16).view(dtype)


def floats_near(dtype: torch.dtype) -> Tensor:
    """Every number of `dtype`, the middle to the next, its neighbours in float, and more floats."""
    codes = all_codes(dtype).float()
    codes = codes[codes.isfinite()].sort().values
    middles = ((codes[1:].double() + codes[:-1].double()) / 2).float()
    down, up = (middles.nextafter(torch.tensor(float(side) * torch.inf)) for side in (-1, 1))
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (50_000,), generator=generator).to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 448.0, 463.9, 464.0, 464.1, 65504.0, 65519.99])
    special = torch.cat([special, torch.tensor([65520.0, 65536.0, 1e-45, 1.2e-38, 3.4e38, 3.3961776e38])])
    values = torch.cat([codes, middles, down, up, bits, special, -special])
    return torch.cat([values, torch.zeros(-len(values) % (2 * THREADS))])


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As the contract says: e4m3 ends at 448."""
    return (x.clamp(-448, 448) if dtype == torch.float8_e4m3fn else x).to(dtype).float()


def functions_of(path: Path) -> dict[str, int]:
    """Functions that a header defines: how many parameters each has, without the place of its call."""
    found = re.findall(r"(?:__forceinline__|^inline) [\w:]+ (\w+)\(([^{]*)\) \{", path.read_text(), re.MULTILINE)
    return {
        name: len([each for each in given.split(",") if each.strip() and "Place" not in each]) for name, given in found
    }


def test_host_and_device_offer_the_same_primitives() -> None:
    device, host = functions_of(SOURCES / "device.cuh"), functions_of(INCLUDE / "primitives.h")
    assert device.pop("shared_address") == 1, "the PTX address of shared memory is device.cuh's own"
    assert host.pop("flushed") == 1, "an instruction's way with subnormal numbers is primitives.h's own"
    assert len(device) > 20
    assert host == device


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_every_code_means_what_it_means_to_torch(call: Call, dtype: torch.dtype) -> None:
    codes = all_codes(dtype)
    y = torch.empty(len(codes))
    call(f"widen_{NAMES[dtype]}", len(codes), codes, y)
    assert same(y, codes.float())


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_floats_are_rounded_to_nearest_even(call: Call, dtype: torch.dtype) -> None:
    x = floats_near(dtype)
    y = torch.empty(len(x), dtype=dtype)
    call(f"narrow_{NAMES[dtype]}", len(x), x, y)
    assert same(y.float(), rounded(x, dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=NAMES.get)
def test_pairs_are_packed_low_first(call: Call, dtype: torch.dtype) -> None:
    x = floats_near(dtype)
    y = torch.empty(len(x), dtype=dtype)
    call(f"pack_pairs_{NAMES[dtype]}", len(x) // 2, x, y)
    assert same(y.float(), x.to(dtype).float())


@pytest.mark.parametrize("dtype", HALVES, ids=NAMES.get)
def test_four_e4m3_are_widened_at_once(call: Call, dtype: torch.dtype) -> None:
    codes = all_codes(torch.float8_e4m3fn).view(torch.uint8)
    codes = torch.stack([codes.roll(shift) for shift in (0, 3, 100, 200)], 1).contiguous()
    y = torch.empty((256, 2, 2), dtype=dtype)
    call(f"widen_four_{NAMES[dtype]}", 256, codes, y)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert same(y.float().transpose(1, 2).reshape(256, 4), expected)


def test_exponentials_logarithms_and_fused_sums(call: Call) -> None:
    x = torch.cat([torch.linspace(-140, 140, 1000), torch.tensor([-torch.inf, torch.inf, torch.nan, 0.0])])
    x = torch.cat([x, torch.rand(-len(x) % THREADS)])
    y = torch.empty(5, len(x))
    call("math", len(x), x, y, len(x))
    exact = torch.exp2(x.double())
    power = torch.where(exact < 2.0**-126, 0.0, exact).float()
    torch.testing.assert_close(y[0], power, rtol=3e-7, atol=0, equal_nan=True)
    torch.testing.assert_close(y[1], torch.log2(x), rtol=3e-7, atol=3e-7, equal_nan=True)
    fused = (x.double() * x.double() - 1).float()
    assert same(y[2], fused)
    assert same(y[3], x * x - 1)
    assert not torch.equal(y[2][:1000], y[3][:1000]), "a product and a sum are fused where fmaf says so only"
    assert same(y[4], torch.fmax(x, torch.tensor(0.5)))


@pytest.mark.parametrize("dtype", HALVES, ids=NAMES.get)
@pytest.mark.parametrize("place", [None, *range(0, 256, 37)])
def test_fragments_of_the_manual_make_a_matrix_product(
    launcher: HostLauncher, dtype: torch.dtype, place: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-9, 10, (16, 16), generator=generator).to(dtype)
    b = torch.randint(-9, 10, (16, 8), generator=generator).to(dtype)
    c = torch.randint(-9, 10, (16, 8), generator=generator).float()
    if place is not None:  # one number alone shows where each one goes
        a = torch.zeros(256).index_fill_(0, torch.tensor([place]), 1).view(16, 16).to(dtype)
    expected = c + a.float() @ b.float()
    name = f"matrix::by_number<{str(dtype == torch.bfloat16).lower()}>"
    launcher.kernel("matrix.cu", name)((1, 1, 1), 32, 0, arguments(a, b, c))
    assert torch.equal(c, expected)


@pytest.mark.parametrize("dtype", HALVES, ids=NAMES.get)
def test_fragments_by_ldmatrix_make_a_matrix_product(launcher: HostLauncher, dtype: torch.dtype) -> None:
    a, b = (torch.randint(-9, 10, (16, 16)).to(dtype) for _ in range(2))
    c = torch.zeros(16, 16)
    name = f"matrix::by_ldmatrix<{str(dtype == torch.bfloat16).lower()}>"
    launcher.kernel("matrix.cu", name)((1, 1, 1), 32, 0, arguments(a, b, c))
    assert torch.equal(c, a.float() @ b.float())


def test_each_lane_loads_its_numbers_of_four_matrices(launcher: HostLauncher) -> None:
    x = torch.arange(256, dtype=torch.int16).view(4, 8, 8)
    y = torch.empty((2, 32, 4, 2), dtype=torch.int16)
    launcher.kernel("matrix.cu", "matrix::registers")((1, 1, 1), 32, 0, arguments(x, y))
    for lane in range(32):
        row, pair = lane // 4, lane % 4 * 2
        assert torch.equal(y[0, lane], x[:, row, pair : pair + 2])
        assert torch.equal(y[1, lane], x[:, pair : pair + 2, row])


def test_a_product_sums_in_float_and_keeps_nan_and_infinity(launcher: HostLauncher) -> None:
    a, b = torch.full((16, 16), 0.1).bfloat16(), torch.full((16, 8), 3.0).bfloat16()
    a[3, 5], a[4, 6] = torch.nan, torch.inf
    c = torch.full((16, 8), 1e-3)
    expected = c.double() + a.double() @ b.double()
    launcher.kernel("matrix.cu", "matrix::by_number<true>")((1, 1, 1), 32, 0, arguments(a, b, c))
    torch.testing.assert_close(c.double(), expected, rtol=1e-6, atol=0, equal_nan=True)
