"""What the machine can do: device and element type for `auto`. Files are read through a function that tests fake."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from paged_core.device.presence import cuda_presence
from paged_core.errors import ConfigError

log = logging.getLogger("paged_core.engine")

ReadText = Callable[[str], str]
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_KV_BYTES = {name: (num_bytes, 0) for name, num_bytes in _ELEMENT_BYTES.items()} | {
    "uint8": (1, 8),
    "float8_e4m3fn": (1, 0),
}


def read_text(path: str) -> str:
    """A file's text; "" where there is none (another system, a container without it)."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_has_bf16(read: ReadText = read_text) -> bool:
    """Whether the processor multiplies bfloat16 natively (AVX512-BF16, AMX-BF16, AVX-NE-CONVERT or Arm BF16)."""
    for line in read("/proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags.split()))
    return False


def choose_threads(asked: int | None, read: ReadText = read_text) -> int:
    """Compute threads; 0 = as many as torch takes, which is one a core.

    Where a container's share of the processor is less than the cores it sees, one thread a whole core of that share:
    more would wait for each other. Said once.
    """
    if asked is not None:
        return asked
    share = _cpu_share(read)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if share is None or share >= cores:
        return 0
    log.warning("this container may use %.1f of %d cores: computing with %d threads", share, cores, max(1, int(share)))
    return max(1, int(share))


def _cpu_share(read: ReadText) -> float | None:
    """Cores' worth of time that this process's cgroup and those around it allow, or None for no limit."""
    limits = [read("/sys/fs/cgroup/cpu.max")]
    limits.append(" ".join(read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period")))
    for line in read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            path = PurePosixPath(line[3:].strip())
            limits += [read(f"/sys/fs/cgroup{folder}/cpu.max") for folder in (path, *path.parents)]
    shares = []
    for limit in limits:
        quota, _, period = limit.strip().partition(" ")
        if quota.strip().isdecimal() and period.strip().isdecimal():  # else "max", -1 or no such file
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def choose_device(asked: str) -> str:
    """`auto` = cuda when torch sees one. Raises ConfigError for an explicit device that is not there."""
    import torch

    if asked == "cpu":
        return asked
    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        presence = cuda_presence()
        why = f": {'; '.join(presence.reasons)}" if presence.reasons else ""
        cures = "; ".join((*presence.hints, "--device=cpu or auto"))
        raise ConfigError(f"device cuda was asked for, but torch sees no CUDA device here{why}. Try: {cures}")
    return "cpu"


def gpu_memory() -> tuple[int, int]:
    """Bytes of the CUDA device in use: free, and in all."""
    import torch

    from paged_core.device.stream import CudaAccelerator

    return CudaAccelerator(torch.device("cuda")).memory()


def choose_dtype(asked: str, stored: str, device: str, read: ReadText = read_text) -> str:
    """Element type of weights and activations.

    `auto` keeps float32 checkpoints in float32 and runs all others in bfloat16, except on processors without bfloat16
    arithmetic, where it takes float32 and says so once. An explicit type is obeyed: torch emulates what the processor
    lacks, slowly but correctly.
    """
    if asked != "auto":
        if asked not in _ELEMENT_BYTES:
            raise ConfigError(f"dtype {asked!r} is unknown; choose auto, {', '.join(_ELEMENT_BYTES)}")
        return asked
    if stored == "float32":
        return "float32"
    if device == "cpu" and not cpu_has_bf16(read):
        log.warning("this processor has no bfloat16 arithmetic: running in float32 (set --dtype to override)")
        return "float32"
    return stored if device != "cpu" else "bfloat16"


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name."""
    return _ELEMENT_BYTES[dtype]


def kv_bytes(dtype: str) -> tuple[int, int]:
    """Bytes of one element of keys and values, and what each row keeps besides: step and minimum of uint8 codes."""
    return _KV_BYTES[dtype]
