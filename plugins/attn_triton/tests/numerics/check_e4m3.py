"""Bytes of e4m3 against torch's own casts, for every code and every tie."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from paged_attn_triton.e4m3 import decode_e4m3, encode_e4m3
from paged_attn_triton.launch import Launch


@triton.jit
def decode_all(out_ptr, codes_ptr, BY_HARDWARE: tl.constexpr):
    index = tl.arange(0, 256)
    tl.store(out_ptr + index, decode_e4m3(tl.load(codes_ptr + index), out_ptr.dtype.element_ty, BY_HARDWARE))


@triton.jit
def encode_all(out_ptr, numbers_ptr, count, TILE: tl.constexpr):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    numbers = tl.load(numbers_ptr + index, mask=index < count, other=0.0)
    tl.store(out_ptr + index, encode_e4m3(numbers), mask=index < count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_code_is_read_as_torch_reads_it(device, capability, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).to(dtype)
    assert expected.isnan().sum() == 2
    for by_hardware in {False, capability >= 89}:
        out = torch.zeros(256, dtype=dtype, device=device)
        Launch(decode_all, {"BY_HARDWARE": by_hardware}, 4, 1)((1,), out, codes.to(device))
        assert torch.equal(out.cpu().isnan(), expected.isnan())
        assert torch.equal(out.cpu().nan_to_num(), expected.nan_to_num())


def test_numbers_are_coded_as_torch_codes_them_but_bounded(device):
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    around = [ties, torch.nextafter(ties, ties + 1), torch.nextafter(ties, ties - 1), codes]
    spread = torch.randn(3000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 3000)
    special = torch.tensor([448.1, 463.9, 464.0, 464.1, 479.0, 1e30, torch.inf, torch.nan, 1e-30, 1e-45, 0.0])
    numbers = torch.cat([*around, spread, special])
    numbers = torch.cat([numbers, -numbers])
    out = torch.zeros(len(numbers), dtype=torch.uint8, device=device)
    grid = (triton.cdiv(len(numbers), 1024),)
    Launch(encode_all, {"TILE": 1024}, 4, 1)(grid, out, numbers.to(device), len(numbers))
    expected = numbers.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    wrong = torch.nonzero(out.cpu() != expected).flatten()
    assert not len(wrong), f"{numbers[wrong[:5]].tolist()}: {out.cpu()[wrong[:5]].tolist()}, not {expected[wrong[:5]]}"
    assert expected.view(torch.float8_e4m3fn).isnan().sum() == 2
