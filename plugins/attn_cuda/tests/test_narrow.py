"""e4m3 by hand, as GPUs before sm_89 need it, equals torch's on every number that matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parent / "kernels"
CODES = torch.arange(256, dtype=torch.uint8)


@pytest.fixture
def run(host: Any) -> Any:
    """Launches a kernel of narrow.cu with a thread for each of `count` elements."""
    launcher = host.HostLauncher(FOLDER)

    def launch(name: str, *tensors: torch.Tensor) -> None:
        count = len(tensors[0])
        kernel = launcher.kernel("narrow.cu", f"narrow_test::{name}")
        kernel((-(-count // 128), 1, 1), 128, 0, host.arguments(*tensors, count))

    return launch


def test_every_code_is_widened_exactly(run: Any) -> None:
    x = torch.empty(256)
    run("widened", CODES, x)
    expected = CODES.view(torch.float8_e4m3fn).float()
    assert torch.equal(x.isnan(), expected.isnan())
    assert torch.equal(x.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(x.signbit(), expected.signbit())


def test_every_upper_half_of_a_float_is_narrowed_to_the_nearest(run: Any) -> None:
    """2^16 floats, and those a bit above and below them: ties, both sides of them, subnormals, infinities, NaN."""
    upper = torch.arange(2**16, dtype=torch.int64) << 16
    bits = torch.cat([upper, upper + 1, upper - 1, upper + 0x8000]) & 0xFFFFFFFF
    x = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)
    codes = torch.empty(len(x), dtype=torch.uint8)
    run("narrowed", x, codes)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    is_nan = x.isnan()
    assert ((codes & 0x7F) == 0x7F).equal(is_nan)
    wrong = (codes != expected) & ~is_nan
    assert not wrong.any(), f"{x[wrong][:5].tolist()} became {codes[wrong][:5].tolist()}, not {expected[wrong][:5]}"


@pytest.mark.parametrize(("dtype", "bias"), [(torch.bfloat16, 0x7B80), (torch.float16, 0x5C00)])
def test_two_codes_are_widened_at_once(run: Any, dtype: torch.dtype, bias: int) -> None:
    """Times the bias, or NaN; whatever stands in the lower bytes."""
    words = torch.stack([torch.full_like(CODES, 0xA5), CODES, 255 - CODES, CODES.flip(0)], dim=1)
    words = words.reshape(-1).view(torch.int32)
    moved = {name: torch.empty_like(words) for name in ("bf16", "f16", "nan")}
    run("moved", words, moved["bf16"], moved["f16"], moved["nan"])
    halves = moved["bf16" if dtype == torch.bfloat16 else "f16"].view(torch.int16).view(dtype)
    factor = torch.tensor([bias], dtype=torch.int16).view(dtype)
    products = ((halves * factor).view(torch.int16) | moved["nan"].view(torch.int16)).view(dtype).float()
    expected = words.view(torch.uint8)[1::2].contiguous().view(torch.float8_e4m3fn).float()
    assert torch.equal(products.isnan(), expected.isnan())
    assert torch.equal(products.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(products.signbit(), expected.signbit())
