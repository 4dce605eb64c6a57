"""Conditions: machine, versions and load, without which a number says nothing."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core import __version__

if TYPE_CHECKING:
    from paged_core.engine.config import EngineConfig

_PACKAGES = ("torch", "numba", "numpy")


def conditions(facts: EngineConfig | None = None, **more: Any) -> dict[str, Any]:
    """What to print under a table: machine, versions, load before the run, the engine's facts and whatever `more`.

    On the device cuda, of the facts or of `more`, the GPU and its software as well.
    """
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "cores": cores(),
        "load before": load(cores()),
        "python": platform.python_version(),
        "paged-core": __version__,
    }
    found |= {name: _version(name) for name in _PACKAGES}
    if facts is not None:
        found |= {
            "model": facts.model,
            "device": facts.device,
            "dtype": facts.dtype,
            "weights": facts.dtype if facts.quantization == "none" else facts.quantization,
            "KV": facts.kv_dtype,
            "block size": facts.block_size,
            "plugins": " ".join(facts.plugins.values()),
        }
    found |= more
    return found | gpu() if found.get("device") == "cuda" else found


def gpu(driver: str = "/sys/module/nvidia/version") -> dict[str, str]:
    """The GPU that torch computes on, and the versions of what stands between it and a kernel."""
    import torch

    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    try:
        version = Path(driver).read_text().strip()
    except OSError:
        version = "unknown"
    name = f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})"
    return {"GPU": name, "driver": version, "CUDA": str(torch.version.cuda), "triton": _version("triton")}


def load(cores: int) -> str:
    """Mean number of processes that wanted a core in the last minute, with a warning when that is no quiet machine."""
    if not hasattr(os, "getloadavg"):
        return "unknown"
    value = os.getloadavg()[0]
    return f"{value:.2f} (others are at work here: do not quote times)" if value > cores / 2 else f"{value:.2f}"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor(cpuinfo: str = "/proc/cpuinfo") -> str:
    """The processor's name, and which matrix instructions it has. `unknown` where the system does not say."""
    try:
        lines = Path(cpuinfo).read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = set(fields.get("flags", fields.get("features", "")).split())
    has = [
        name for name in ("avx2", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm") if name in flags
    ]
    name = fields.get("model name", platform.machine())
    family = f" family {fields['cpu family']}" if "cpu family" in fields else ""
    return f"{name}{family} ({' '.join(has) or 'no matrix extensions'})"


def _version(name: str) -> str:
    module = sys.modules.get(name)
    try:
        return str(getattr(module, "__version__", None) or version(name))
    except PackageNotFoundError:
        return "absent"
