"""The provider: every reason at once with its cure, nothing allocated or compiled, and the real command's message."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from paged_attn_cuda import provider as provider_module
from paged_attn_cuda import toolchain as toolchain_module
from paged_attn_cuda.provider import CudaAttentionProvider, CudaAttentionSettings
from paged_attn_cuda.toolchain import MIN_NVRTC, Toolchain, find_toolchain, glance, target_arch
from pydantic import ValidationError

from paged_core.api.attention import AttentionNeed
from paged_core.device.presence import Gpu, Presence

NEED = AttentionNeed("cuda", "bfloat16", "bfloat16", 8, 2, 128, 16)
HERE = Presence((Gpu("NVIDIA H200", (9, 0)),), (13, 0))
NOWHERE = Presence((), None, ("there is no NVIDIA driver here",), ("install the NVIDIA driver",))
TOOLS = Toolchain((13, 0), (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121))


@pytest.fixture
def probe(monkeypatch):
    """Probe a need on a machine that has these; everything by default."""

    def judge(need=NEED, presence=HERE, toolchain=TOOLS, torch_sees=True):
        monkeypatch.setattr(provider_module, "cuda_presence", lambda: presence)
        monkeypatch.setattr(provider_module, "find_toolchain", lambda: toolchain)
        monkeypatch.setattr(provider_module, "glance", lambda: toolchain)
        monkeypatch.setattr(provider_module, "_torch_sees_a_gpu", lambda: torch_sees)
        return CudaAttentionProvider().probe(need)

    return judge


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 192, 256])
def test_what_kernels_are_compiled_for_fits(probe, dtype, head_dim):
    for kv_dtype in (dtype, "float8_e4m3fn"):
        for block_size in (8, 16, 32, 64, 128, 256):
            need = replace(NEED, dtype=dtype, kv_dtype=kv_dtype, head_dim=head_dim, block_size=block_size)
            assert probe(need).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"kv_dtype": "float16"}, "float16"),
        ({"kv_dtype": "uint8"}, "uint8"),
        ({"head_dim": 72}, "72"),
        ({"head_dim": 272}, "272"),
        ({"head_dim": 0}, "not 0"),
        ({"block_size": 4}, "not 4"),
        ({"block_size": 24}, "24"),
        ({"num_heads": 7}, "2 KV heads among 7"),
        ({"num_kv_heads": 0}, "0 KV heads"),
        ({"required": frozenset({"u8"})}, "'u8'"),
    ],
)
def test_each_thing_that_no_kernel_serves_is_a_reason_of_its_own(probe, change, said):
    fit = probe(replace(NEED, **change))
    assert any(said in reason for reason in fit.reasons)
    assert len(fit.reasons) == (2 if change == {"dtype": "float64"} else 1)


def test_on_a_cpu_without_anything_all_that_is_missing_is_told(probe):
    tools = Toolchain(reasons=("attn_cuda compiles its kernels through cuda.core and cuda.bindings: not installed",))
    fit = probe(replace(NEED, device="cpu", dtype="float32", kv_dtype="float32", block_size=4), NOWHERE, tools)
    assert len(fit.reasons) == 4
    device, shape, driver, tool = fit.reasons
    assert device == "attn_cuda runs on the device cuda only, not on cpu"
    assert "block_size" in shape
    assert driver == "there is no NVIDIA driver here"
    assert "not installed" in tool
    assert fit.hints == ("install the NVIDIA driver", 'pip install "paged-core[cuda]"')


def test_on_a_cpu_of_a_machine_that_has_everything_the_cure_is_the_device(probe):
    fit = probe(replace(NEED, device="cpu"))
    assert fit.reasons == ("attn_cuda runs on the device cuda only, not on cpu",)
    assert fit.hints == ("--device=cuda",)


def test_a_gpu_that_is_too_old_is_named(probe):
    fit = probe(presence=Presence((Gpu("Tesla T4", (7, 5)),), (13, 0)))
    (reason,) = fit.reasons
    assert "Tesla T4 has compute capability 7.5" in reason
    assert "8.0" in reason


def test_a_gpu_that_is_too_new_for_nvrtc_is_named_with_its_version(probe):
    (reason,) = probe(presence=Presence((Gpu("NVIDIA X", (15, 0)),), (14, 0))).reasons
    assert "NVIDIA X" in reason
    assert "NVRTC 13.0" in reason


def test_a_driver_older_than_nvrtc_is_told_with_both_versions(probe):
    (reason,) = probe(presence=replace(HERE, cuda=(12, 8))).reasons
    assert "NVRTC 13.0" in reason
    assert "12.8" in reason


def test_a_driver_that_is_too_old_for_any_nvrtc_is_told(probe):
    (reason,) = probe(presence=replace(HERE, cuda=(12, 2)), toolchain=replace(TOOLS, nvrtc=(12, 9))).reasons
    assert reason == "the NVIDIA driver speaks CUDA 12.2, attn_cuda needs 12.4: install a newer one"
    assert probe(presence=replace(HERE, cuda=(12, 4)), toolchain=replace(TOOLS, nvrtc=(12, 9))).ok


def test_torch_that_sees_no_gpu_where_the_driver_shows_one_is_told(probe):
    (reason,) = probe(torch_sees=False).reasons
    assert "torch sees none" in reason


def test_probing_where_everything_is_here_needs_nothing_more(probe):
    assert probe().ok
    assert probe().hints == ()


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((12, 0), "sm_120")],
)
def test_the_architecture_is_the_gpus_own(capability, arch):
    assert target_arch(capability, TOOLS.archs) == arch


def test_an_older_compiler_compiles_for_the_nearest_older_gpu_of_the_same_generation():
    assert target_arch((8, 9), (80, 86, 90)) == "sm_86"
    assert target_arch((10, 3), (90, 100)) == "sm_100"
    assert target_arch((12, 0), (90, 100)) is None


def test_the_toolchain_of_the_extra_compiles_for_the_gates_architectures():
    pytest.importorskip("cuda.core", reason="the extra cuda is not installed")
    found = find_toolchain()
    assert found.reasons == ()
    assert found.nvrtc >= MIN_NVRTC
    assert {80, 90, 100} <= set(found.archs)


def test_cuda_core_that_is_not_installed_is_named_with_what_it_is_for(monkeypatch):
    monkeypatch.setattr(toolchain_module, "_is_installed", lambda name: name == "cuda.bindings")
    assert find_toolchain().reasons == ("attn_cuda compiles its kernels through cuda.core: not installed",)


@pytest.mark.parametrize(
    ("version", "said"), [((0, 12, 4), "NVRTC 12.4 is too old, 12.8 is needed"), ((7, 0, 0), "does not answer")]
)
def test_an_nvrtc_that_is_too_old_or_silent_is_a_reason(monkeypatch, version, said):
    pytest.importorskip("cuda.bindings.nvrtc", reason="the extra cuda is not installed")
    from cuda.bindings import nvrtc

    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: version)
    (reason,) = find_toolchain().reasons
    assert said in reason


def test_an_nvrtc_library_that_is_not_there_is_a_reason(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="the extra cuda is not installed")
    from cuda.bindings import nvrtc

    def missing():
        from cuda.pathfinder import DynamicLibNotFoundError

        raise DynamicLibNotFoundError("Failure finding libnvrtc.so\nand where it was looked for")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    (reason,) = find_toolchain().reasons
    assert "NVRTC, whose library is not here (Failure finding libnvrtc.so)" in reason


def test_a_machine_without_the_extra_is_told_so_though_nothing_of_cuda_can_be_imported():
    code = (
        "import sys; sys.modules['cuda'] = None; from paged_attn_cuda.toolchain import find_toolchain; "
        "print(find_toolchain().reasons[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cuda.core and cuda.bindings: not installed" in done.stdout


def test_where_nothing_will_be_compiled_nvrtc_is_not_loaded():
    pytest.importorskip("cuda.core", reason="the extra cuda is not installed")
    code = (
        "import sys; from paged_attn_cuda.toolchain import glance; found = glance(); "
        "print(found.reasons, found.nvrtc, 'cuda.bindings.nvrtc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "() (0, 0) False"


def test_a_glance_sees_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(toolchain_module, "_is_installed", lambda name: name == "cuda.bindings")
    assert glance().reasons == ("attn_cuda compiles its kernels through cuda.core: not installed",)


def test_a_glance_looks_closer_where_nvrtc_is_no_wheel(monkeypatch):
    monkeypatch.setattr(toolchain_module, "_is_installed", lambda name: True)
    monkeypatch.setattr(toolchain_module, "_NVRTC_WHEELS", ("no-such-distribution",))
    monkeypatch.setattr(toolchain_module, "find_toolchain", lambda: TOOLS)
    assert glance() == TOOLS


@pytest.mark.parametrize("arch", ["90", "sm_9", "compute_90", "sm_90x", "sm_90; rm"])
def test_an_architecture_that_is_none_is_refused_as_a_setting(arch):
    with pytest.raises(ValidationError):
        CudaAttentionSettings(arch=arch)


def test_settings_accept_an_architecture_and_a_folder():
    settings = CudaAttentionSettings(arch="sm_90a", cache_dir="/somewhere")
    assert (settings.arch, settings.cache_dir) == ("sm_90a", "/somewhere")


def test_where_torch_is_loaded_it_is_asked_and_where_not_it_is_left_alone(monkeypatch):
    seen = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", seen)
    assert provider_module._torch_sees_a_gpu() is False
    monkeypatch.delitem(sys.modules, "torch")
    assert provider_module._torch_sees_a_gpu() is True
    assert "torch" not in sys.modules


def test_every_setting_is_in_the_readme():
    from pathlib import Path

    page = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    rows = {line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")}
    assert set(CudaAttentionSettings.model_fields) <= rows


def test_the_command_says_everything_at_once_and_ends_with_two(tmp_path, monkeypatch):
    """As a user types it, where CUDA is missing; a tiny model stands for any other."""
    from click.testing import CliRunner

    from paged_core.cli import main
    from paged_core.testing.tiny import write_tiny_llama

    monkeypatch.setattr(provider_module, "cuda_presence", lambda: NOWHERE)
    tools = Toolchain(reasons=("attn_cuda compiles its kernels through cuda.core: not installed",))
    monkeypatch.setattr(provider_module, "glance", lambda: tools)
    model = str(write_tiny_llama(tmp_path / "model"))
    result = CliRunner().invoke(main, ["run", "--attn=attn_cuda", "--device=cpu", "--model", model, "hello"])
    assert result.exit_code == 2
    for said in (
        *NOWHERE.reasons,
        *NOWHERE.hints,
        *tools.reasons,
        'pip install "paged-core[cuda]"',
        "device cuda only",
    ):
        assert said in result.stderr
    assert result.stdout == ""
