"""What compiles and launches: cuda.core and NVRTC, whether they are here, and for which architectures they compile."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

EXTRA = 'pip install "paged-core[cuda]"'
_NVRTC_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
MIN_NVRTC = (12, 8)  # the first that compiles for sm_100
MIN_DRIVER = (12, 4)  # the first that tells the sizes of a kernel's parameters


@dataclass(frozen=True, slots=True)
class Toolchain:
    """NVRTC's version and the architectures it compiles for (80 = sm_80), or the reasons why it is of no use."""

    nvrtc: tuple[int, int] = (0, 0)
    archs: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()


def glance() -> Toolchain:
    """Only whether the packages are installed, in a millisecond; version and architectures stay unknown.

    For a device on which nothing will be compiled: loading NVRTC takes 50 ms of every start. Does not raise.
    """
    reasons = _missing_modules()
    if reasons or any(_has_distribution(name) for name in _NVRTC_WHEELS):
        return Toolchain(reasons=reasons)
    return find_toolchain()  # NVRTC may come from elsewhere, such as an installed CUDA toolkit


def find_toolchain() -> Toolchain:
    """Look for cuda.core and NVRTC; loads the library of NVRTC, needs no driver. Does not raise."""
    reasons = _missing_modules()
    if reasons:
        return Toolchain(reasons=reasons)
    from cuda.bindings import nvrtc

    try:
        code, major, minor = nvrtc.nvrtcVersion()
        archs_code, archs = nvrtc.nvrtcGetSupportedArchs()
    except RuntimeError as error:  # cuda.pathfinder's DynamicLibNotFoundError is one
        first = str(error).splitlines()[0]
        return Toolchain(reasons=(f"attn_cuda compiles its kernels by NVRTC, whose library is not here ({first})",))
    if code or archs_code:
        return Toolchain(reasons=(f"NVRTC does not answer (codes {int(code)} and {int(archs_code)})",))
    if (major, minor) < MIN_NVRTC:
        wanted = ".".join(map(str, MIN_NVRTC))
        return Toolchain((major, minor), tuple(archs), (f"NVRTC {major}.{minor} is too old, {wanted} is needed",))
    return Toolchain((major, minor), tuple(archs))


def _missing_modules() -> tuple[str, ...]:
    missing = [name for name in ("cuda.core", "cuda.bindings") if not _is_installed(name)]
    return (f"attn_cuda compiles its kernels through {' and '.join(missing)}: not installed",) if missing else ()


def _has_distribution(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def _is_installed(name: str) -> bool:
    """Whether a module can be imported; `cuda` is shared by several distributions and may be absent as a whole."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def target_arch(capability: tuple[int, int], archs: tuple[int, ...]) -> str | None:
    """The architecture to compile for: the GPU's own or the nearest older one whose machine code it runs.

    Machine code runs on GPUs of the same major number and an equal or higher minor one. None: there is none.
    """
    own = capability[0] * 10 + capability[1]
    runs = [arch for arch in archs if arch // 10 == capability[0] and arch <= own]
    return f"sm_{max(runs)}" if runs else None
