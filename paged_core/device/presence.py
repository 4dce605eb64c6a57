"""What of CUDA is on this machine: driver, GPUs and torch's build, found without torch and without a CUDA context."""

from __future__ import annotations

import ctypes
import importlib.util
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY = "libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver names it, and its compute capability, such as (9, 0)."""

    name: str
    capability: tuple[int, int]

    @property
    def shown(self) -> str:
        """The capability as NVIDIA writes it: 9.0."""
        return ".".join(map(str, self.capability))


@dataclass(frozen=True, slots=True)
class Presence:
    """The GPUs that a program sees here, in CUDA's order, and what keeps torch from using them.

    `cuda`: the newest version of CUDA that the driver speaks, None without one. `reasons` is empty where torch can
    compute on the first GPU; `hints` are the cures.
    """

    gpus: tuple[Gpu, ...] = ()
    cuda: tuple[int, int] | None = None
    reasons: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA it was built for ("" = none)."""

    version: str
    cuda: str


def installed_torch() -> TorchBuild | None:
    """What torch says of itself in its version file, so that it need not be imported; None when not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return TorchBuild(str(facts["__version__"]), facts.get("cuda") or "")


def cuda_presence(
    load: Callable[[str], Any] = ctypes.CDLL, find_torch: Callable[[], TorchBuild | None] = installed_torch
) -> Presence:
    """Look at the driver and at torch's build. Makes no context and allocates nothing on a GPU; does not raise."""
    gpus, cuda, reasons, hints = _ask_driver(load)
    build = find_torch()
    if build is None:
        reasons.append("torch is not installed")
        hints.append("pip install torch")
    elif not build.cuda:
        reasons.append(f"the installed torch {build.version} is built without CUDA")
        hints.append("pip install torch from the index of a CUDA build (pytorch.org/get-started shows its address)")
    elif cuda is not None and int(build.cuda.split(".")[0]) > cuda[0]:
        reasons.append(
            f"torch {build.version} is built for CUDA {build.cuda}, the driver speaks no more than {cuda[0]}.{cuda[1]}"
        )
        hints.append(f"install a newer NVIDIA driver, or a torch built for CUDA {cuda[0]}")
    return Presence(tuple(gpus), cuda, tuple(reasons), tuple(hints))


def _ask_driver(load: Callable[[str], Any]) -> tuple[list[Gpu], tuple[int, int] | None, list[str], list[str]]:
    """GPUs, the driver's CUDA, and what is wrong with either, with cures."""
    try:
        driver = load(_LIBRARY)
    except OSError as error:
        cure = "install the NVIDIA driver, or start the container with its GPUs (docker run --gpus all)"
        return [], None, [f"there is no NVIDIA driver here ({error})"], [cure]
    version = ctypes.c_int()
    code = driver.cuDriverGetVersion(ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10) if code == 0 else None
    code = driver.cuInit(0)
    count = ctypes.c_int()
    if code == 0:
        code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code == _NO_DEVICE or (code == 0 and count.value == 0):
        cure = "see what nvidia-smi lists, and whether CUDA_VISIBLE_DEVICES hides it"
        return [], cuda, ["the NVIDIA driver shows no GPU to this program"], [cure]
    if code != 0:
        cure = "see whether nvidia-smi works: driver and kernel module may differ until the next restart"
        return [], cuda, [f"the NVIDIA driver does not start (cuInit: error {code})"], [cure]
    return [_gpu(driver, index) for index in range(count.value)], cuda, [], []


def _gpu(driver: Any, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(128)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value))
