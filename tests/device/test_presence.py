"""What of CUDA is here: every way in which driver, GPUs and torch may be missing or not fit each other."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest

from paged_core.device.presence import Gpu, TorchBuild, cuda_presence, installed_torch

GPUS = (("NVIDIA H200", (9, 0)), ("Tesla T4", (7, 5)))


class FakeDriver:
    """libcuda's entries that are called, answering into the caller's memory."""

    def __init__(self, gpus: Any = GPUS, version: int = 13000, init: int = 0) -> None:
        self._gpus, self._version, self._init = gpus, version, init

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self._version
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._gpus)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 10 + index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:  # noqa: N802
        name.value = self._gpus[device.value - 10][0].encode()[: length - 1]
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = self._gpus[device.value - 10][1][attribute - 75]
        return 0


def look(driver: FakeDriver | None, build: TorchBuild | None):
    def load(name: str) -> Any:
        assert name in ("libcuda.so.1", "nvcuda.dll")
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    return cuda_presence(load, lambda: build)


CUDA_TORCH = TorchBuild("2.13.0", "13.0")
CPU_TORCH = TorchBuild("2.13.0+cpu", "")


def test_a_machine_that_has_everything_lists_its_gpus_in_order():
    presence = look(FakeDriver(), CUDA_TORCH)
    assert presence.gpus == tuple(Gpu(*gpu) for gpu in GPUS)
    assert presence.cuda == (13, 0)
    assert (presence.reasons, presence.hints) == ((), ())


def test_no_driver_and_a_cpu_build_are_both_told_each_with_its_cure():
    presence = look(None, CPU_TORCH)
    assert (presence.gpus, presence.cuda) == ((), None)
    driver, torch = presence.reasons
    assert "no NVIDIA driver here" in driver
    assert "libcuda.so.1" in driver
    assert "torch 2.13.0+cpu is built without CUDA" in torch
    assert "install the NVIDIA driver" in presence.hints[0]
    assert "pip install torch" in presence.hints[1]


@pytest.mark.parametrize("driver", [FakeDriver(init=100), FakeDriver(gpus=())])
def test_a_driver_that_shows_no_gpu_says_where_to_look(driver):
    presence = look(driver, CUDA_TORCH)
    assert presence.reasons == ("the NVIDIA driver shows no GPU to this program",)
    assert "CUDA_VISIBLE_DEVICES" in presence.hints[0]


def test_a_driver_that_does_not_start_is_told_with_its_code():
    presence = look(FakeDriver(init=803), CUDA_TORCH)
    assert presence.gpus == ()
    assert "cuInit: error 803" in presence.reasons[0]
    assert "nvidia-smi" in presence.hints[0]


def test_a_driver_older_than_torchs_cuda_is_told_with_both_versions():
    presence = look(FakeDriver(version=12040), CUDA_TORCH)
    (reason,) = presence.reasons
    assert "built for CUDA 13.0" in reason
    assert "12.4" in reason
    assert presence.gpus != ()


def test_minor_versions_of_one_cuda_go_together():
    assert look(FakeDriver(version=12020), TorchBuild("2.11.0+cu128", "12.8")).reasons == ()


def test_torch_that_is_not_installed_is_told():
    presence = look(FakeDriver(), None)
    assert presence.reasons == ("torch is not installed",)
    assert presence.hints == ("pip install torch",)


def test_the_installed_torch_is_read_without_importing_it():
    code = (
        "import sys; from paged_core.device.presence import *; build = installed_torch(); cuda_presence(); "
        "print(build.version, build.cuda or 'none', 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import torch

    assert done.stdout.split() == [torch.__version__, torch.version.cuda or "none", "False"]
    build = installed_torch()
    assert build is not None
    assert build.version == torch.__version__


@pytest.mark.gpu
def test_a_real_gpu_is_found_as_torch_finds_it():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: this compares with torch's own listing of it")
    presence = cuda_presence(ctypes.CDLL)
    assert presence.reasons == ()
    found = [(gpu.name, gpu.capability) for gpu in presence.gpus]
    assert found == [
        (torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
        for index in range(torch.cuda.device_count())
    ]
