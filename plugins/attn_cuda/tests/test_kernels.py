"""Names, sizes and arguments of kernels agree with their sources."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import paged_attn_cuda
import pytest
import torch
from paged_attn_cuda.kernels import HEAD_DIMS, PARAMETERS, Types, instances

CSRC = Path(paged_attn_cuda.__file__).parent / "csrc"
FAMILIES = sorted(PARAMETERS)
CTYPES = {"int64_t": ctypes.c_int64, "int": ctypes.c_int32, "float": ctypes.c_float}


def parameters_of(family: str) -> dict[str, object]:
    """Names and ctypes of the parameters that the kernel's source declares, in order."""
    text = re.sub(r"//[^\n]*", "", (CSRC / f"{family}.cu").read_text())
    inside = re.search(rf"__global__[^;{{]*?\b{family}\((.*?)\)\s*{{", text, re.DOTALL)
    assert inside is not None
    found: dict[str, object] = {}
    for declared in inside[1].split(","):
        kind, name = declared.strip().rsplit(" ", 1)
        found[name] = ctypes.c_void_p if kind.endswith("*") else CTYPES[kind]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_source(family: str) -> None:
    assert list(parameters_of(family).items()) == list(PARAMETERS[family].items())


def test_every_source_has_instances_and_each_is_named_once() -> None:
    listed = list(instances())
    assert len({each.name for each in listed}) == len(listed)
    assert sorted({each.source for each in listed}) == sorted(path.name for path in CSRC.glob("*.cu"))


def test_every_need_finds_its_kernels_among_the_instances() -> None:
    listed = set(instances())
    for dtype in ("float32", "bfloat16", "float16"):
        for kv_dtype in (dtype, "float8_e4m3fn"):
            for head_dim in range(16, 257, 16):
                types = Types.of(dtype, kv_dtype, head_dim)
                asked = {types.write(1), types.write(types.vector()), types.decode(), types.prefill(), types.merge()}
                assert asked <= listed


def test_shared_memory_fits_every_device_since_sm_80() -> None:
    most = max(instances(), key=lambda each: each.shared_bytes)
    assert most.shared_bytes <= 99 * 1024, most


def test_sizes_are_those_of_the_source(host: Any) -> None:
    sizes = torch.zeros(6, len(HEAD_DIMS), 5, dtype=torch.int32)
    launcher = host.HostLauncher(Path(__file__).parent / "kernels")
    launcher.kernel("shapes.cu", "shapes_test::sizes")((1, 1, 1), 1, 0, host.arguments(sizes))
    pairs = [(dtype, kv) for dtype in ("float32", "bfloat16", "float16") for kv in (dtype, "float8_e4m3fn")]
    for pair, by_dim in zip(pairs, sizes.tolist(), strict=True):
        for head_dim, expected in zip(HEAD_DIMS, by_dim, strict=True):
            types = Types(*pair, head_dim)
            decode, prefill = types.decode(), types.prefill()
            stated = [decode.threads, decode.shared_bytes, prefill.threads, prefill.shared_bytes, types.prefill_rows()]
            assert stated == expected, f"{pair}, head_dim {head_dim}"
