"""memory_limit: how much host memory is left for this process, by what machine and cgroups say."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None  # not every machine has every file; the caller knows what the lack means


def memory_limit(read: Callable[[str], str | None] = _read) -> int:
    """Bytes this process may still take: the least of what the machine and each enclosing cgroup leave free.

    Machine: MemAvailable, elsewhere than on Linux all physical memory. Cgroup v2 and v1: limit minus usage, page cache
    that can be dropped not counted as use. `read` returns a file's text, or None when there is no such file.
    Raises ConfigError where nothing tells.
    """
    meminfo = re.search(r"^MemAvailable:\s+(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE)
    free = [int(meminfo[1]) * 1024] if meminfo else _physical_memory()
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            free += _cgroup_free(read, "/sys/fs/cgroup", group, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            free += _cgroup_free(read, "/sys/fs/cgroup/memory", group, names)
    if not free:
        raise ConfigError("this system does not say how much memory is free; set kv_memory, for example to 2GiB")
    return max(0, min(free))


def _cgroup_free(
    read: Callable[[str], str | None], root: str, group: str, names: tuple[str, str, str]
) -> Iterator[int]:
    """Free bytes of the group and its ancestors, as far as they are visible here and limited."""
    path = PurePosixPath(group)
    for folder in (path, *path.parents):
        base = root + str(folder).rstrip("/")
        limit, usage = read(f"{base}/{names[0]}"), read(f"{base}/{names[1]}")
        if limit is None or usage is None or limit.strip() == "max":
            continue
        cached = re.search(rf"^{names[2]} (\d+)", read(f"{base}/memory.stat") or "", re.MULTILINE)
        yield int(limit) - int(usage) + (int(cached[1]) if cached else 0)


def _physical_memory() -> list[int]:
    try:
        return [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        return []  # no such call or no such value on this system; the caller raises
