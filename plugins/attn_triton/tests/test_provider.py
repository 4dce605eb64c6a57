"""What the provider says of needs and machines, without torch or triton."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from paged_attn_triton import TritonAttentionProvider, provider

from paged_core.api.attention import AttentionNeed
from paged_core.device.presence import Gpu, Presence

NEED = AttentionNeed("cuda", "bfloat16", "bfloat16", 8, 2, 128, 16, max_len=4096, max_rows=8, token_budget=256)
H100 = Presence((Gpu("H100", (9, 0)),), (13, 0))


@pytest.fixture
def on(monkeypatch):
    def see(presence: Presence) -> TritonAttentionProvider:
        monkeypatch.setattr(provider, "cuda_presence", lambda: presence)
        return TritonAttentionProvider()

    return see


def reasons(fit: Any) -> str:
    assert fit.ok == (not fit.reasons)
    return "\n".join(fit.reasons)


def test_a_gpu_of_today_fits(on):
    everything = TritonAttentionProvider.capabilities
    assert on(H100).probe(replace(NEED, required=everything)).ok
    assert on(H100).probe(replace(NEED, kv_dtype="float8_e4m3fn", head_dim=80, block_size=256)).ok


def test_what_is_missing_is_told_at_once(on):
    nothing = Presence(reasons=("there is no NVIDIA driver here",), hints=("install the NVIDIA driver",))
    fit = on(nothing).probe(replace(NEED, head_dim=90, block_size=24, kv_dtype="uint8", required=frozenset({"u8"})))
    for part in ("no NVIDIA driver", "head_dim", "not 90", "not 24", "does not keep uint8", "'u8'"):
        assert part in reasons(fit)
    assert fit.hints == ("install the NVIDIA driver",)


def test_an_old_gpu_is_named(on):
    fit = on(Presence((Gpu("Tesla T4", (7, 5)),), (12, 0))).probe(NEED)
    assert reasons(fit) == "Tesla T4 has compute capability 7.5; attn_triton needs 8.0 (Ampere) or newer"


def test_triton_is_missing(on, monkeypatch):
    monkeypatch.setattr(provider.importlib.util, "find_spec", lambda name: None)
    fit = on(H100).probe(NEED)
    assert reasons(fit) == "attn_triton needs triton, which is not installed"
    assert fit.hints == ("pip install triton",)


@pytest.mark.parametrize(("value", "fits"), [(None, False), ("0", False), ("1", True), ("true", True)])
def test_a_cpu_will_do_in_the_interpreter_only(value, fits, on, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    fit = on(Presence(reasons=("there is no NVIDIA driver here",))).probe(replace(NEED, device="cpu"))
    assert fit.ok == fits
    if not fits:
        assert "not on cpu, unless TRITON_INTERPRET=1" in reasons(fit)
        assert "no NVIDIA driver" in reasons(fit)
        assert on(H100).probe(replace(NEED, device="cpu")).hints == ("--device=cuda",)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"dtype": "float64", "kv_dtype": "float64"}, "does not support float64"),
        ({"kv_dtype": "float16"}, "does not keep float16 in the KV cache of bfloat16"),
        ({"head_dim": 272}, "not 272"),
        ({"head_dim": 0}, "not 0"),
        ({"block_size": 4}, "not 4"),
        ({"num_kv_heads": 3}, "cannot share 3 KV heads among 8"),
        ({"device": "mps"}, "not on mps"),
    ],
)
def test_shapes_without_a_kernel_are_refused(on, changes, part):
    assert part in reasons(on(H100).probe(replace(NEED, **changes)))


def test_importing_the_plugin_stays_light():
    code = "import sys, paged_attn_triton; print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
