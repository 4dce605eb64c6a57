"""The kernels between products on a GPU against the plain operators: in Triton's interpreter, and compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="there is no triton for this system")

# A process defines its kernels for the interpreter or for a compiler; these tests need both.
INTERPRETED = """
import json, sys, torch
from paged_core.model.gpu_fused import GpuFused
fused, found = GpuFused(), []
case = torch.load(sys.argv[1])
for name, arguments in case["calls"]:
    found.append((getattr(fused, name)(*arguments), arguments[0]))
torch.save(found, sys.argv[2])
"""

COMPILED = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paged_core.model import gpu_fused_kernels as kernels

def compiled(kernel, types, constants, warps, capability):
    names = kernel.arg_names
    signature = dict.fromkeys(names, "constexpr") | types
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    return len(made.asm["cubin"])

sizes = []
for capability in (80, 90, 100):
    for dtype in ("fp32", "bf16", "fp16"):
        pointer = "*" + dtype
        for heads, size, block, warps in ((1, 4096, 4096, 8), (32, 128, 128, 1), (1, 3072, 4096, 8)):
            for has_delta, weight in ((True, pointer), (False, pointer), (True, "*fp32")):
                types = dict.fromkeys(("x_ptr", "delta_ptr", "out_ptr"), pointer) | {"weight_ptr": weight}
                types |= {"stride_x": "i32", "stride_out": "i32", "eps": "fp32"}
                constants = {"HEADS": heads, "SIZE": size, "BLOCK": block, "HAS_DELTA": has_delta}
                sizes.append(compiled(kernels.norm_kernel, types, constants, warps, capability))
        types = {"gate_up_ptr": pointer, "out_ptr": pointer}
        sizes.append(compiled(kernels.gate_kernel, types, {"SIZE": 14336, "BLOCK": 1024}, 4, capability))
print(json.dumps(sizes))
"""


def run(program: str, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment | variables)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def plain_norm(x, weight, eps=1e-5):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def calls(dtype):
    """Every kernel on sizes that fill no power of two, strided tokens, one row and several."""
    torch.manual_seed(0)
    x, delta, weight = torch.randn(5, 96).to(dtype), torch.randn(5, 96).to(dtype), torch.randn(96).to(dtype)
    heads = torch.randn(4, 10, 48).to(dtype)[:, 2:5]  # as q and k lie in their common product
    gate_up = (3 * torch.randn(3, 2 * 1100)).to(dtype)
    return [
        ("norm", (x, None, weight, 1e-5)),
        ("norm", (x.clone(), delta, weight, 1e-5)),
        ("norm", (x[:1].clone(), delta[:1].clone(), weight, 1e-5)),
        ("norm_heads", (heads, weight[:48].clone(), 1e-5)),
        ("gate", (gate_up,)),
        ("norm", (x.clone(), delta, weight.float() * 1.01, 1e-5)),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_are_the_plain_operators(tmp_path, dtype):
    made = calls(dtype)
    torch.save({"calls": made}, tmp_path / "calls")
    run(INTERPRETED, str(tmp_path / "calls"), str(tmp_path / "found"), TRITON_INTERPRET="1")
    found = torch.load(tmp_path / "found")
    (x, _, weight, _), (_, delta, _, _), _, (heads, head_weight, _), (gate_up,), (*_, wide, _) = (
        arguments for _, arguments in made
    )
    gate, up = gate_up.chunk(2, -1)
    expected = [
        plain_norm(x, weight),
        plain_norm(x + delta, weight),
        plain_norm((x + delta)[:1], weight),
        plain_norm(heads, head_weight),
        functional.silu(gate) * up,
        plain_norm((x + delta).float(), wide).to(dtype),
    ]
    for (ours, _), theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        # a sum in another order seldom ends on the other side of a rounding; to bfloat16 the interpreter cuts instead
        torch.testing.assert_close(ours, theirs, rtol=2**-5 if dtype != torch.float32 else 1e-5, atol=1e-6)
        assert dtype != torch.float16 or (ours != theirs).float().mean() < 0.02
    torch.testing.assert_close(found[1][1], x + delta, rtol=0.008 if dtype == torch.bfloat16 else 0, atol=0)  # in place
    assert torch.equal(found[3][0], found[3][1])  # heads are normed in place
    assert torch.equal(found[2][0], found[1][0][:1])  # whatever its neighbours


def test_kernels_compile_for_every_architecture():
    assert all(size > 0 for size in json.loads(run(COMPILED)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_computes_what_the_plain_operators_do(dtype):
    from paged_core.model.gpu_fused import GpuFused

    fused = GpuFused()
    x, delta = torch.randn(7, 4096, device="cuda").to(dtype), torch.randn(7, 4096, device="cuda").to(dtype)
    weight, total = torch.randn(4096, device="cuda").to(dtype), x + delta
    tolerance = {"rtol": 2**-5 if dtype != torch.float32 else 1e-5, "atol": 1e-5}
    torch.testing.assert_close(fused.norm(x, delta, weight, 1e-5), plain_norm(total, weight), **tolerance)
    assert torch.equal(x, total)
    gate_up = torch.randn(7, 2 * 14336, device="cuda").to(dtype)
    gate, up = gate_up.chunk(2, -1)
    torch.testing.assert_close(fused.gate(gate_up), functional.silu(gate) * up, **tolerance)


def test_a_system_without_triton_is_told_what_it_lacks(monkeypatch, caplog):
    from paged_core.model.gpu_fused import gpu_fused_for

    monkeypatch.setitem(sys.modules, "paged_core.model.gpu_fused_kernels", None)
    monkeypatch.delattr("paged_core.model.gpu_fused_kernels", raising=False)
    with caplog.at_level("WARNING"):
        assert gpu_fused_for(torch.bfloat16) is None
    assert "operator by operator" in caplog.text
