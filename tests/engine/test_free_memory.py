from __future__ import annotations

import os

import pytest

from paged_core.engine import free_memory
from paged_core.engine.free_memory import memory_limit
from paged_core.errors import ConfigError

# The memory limit (museum 52: host RAM was taken where a cgroup allowed less)

GIB = 2**30
MEMINFO = f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable:   {32 << 20} kB\n"


def limit(files: dict[str, str]) -> int:
    return memory_limit(files.get)


def test_52_without_cgroups_what_the_machine_has_available_counts():
    assert limit({"/proc/meminfo": MEMINFO}) == 32 * GIB
    assert limit({"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/\n"}) == 32 * GIB


def test_52_a_cgroup_v2_limit_of_any_ancestor_counts_and_page_cache_is_no_use():
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "0::/pod/box\n",
        "/sys/fs/cgroup/pod/box/memory.max": "max\n",
        "/sys/fs/cgroup/pod/box/memory.current": f"{GIB}\n",
        "/sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    assert limit(files) == 2 * GIB
    files["/sys/fs/cgroup/memory.max"] = str(GIB)
    files["/sys/fs/cgroup/memory.current"] = str(2 * GIB)
    assert limit(files) == 0


def test_52_a_cgroup_v1_limit_counts_and_its_huge_number_means_none():
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    assert limit(files) == 32 * GIB
    files["/sys/fs/cgroup/memory/box/memory.limit_in_bytes"] = str(3 * GIB)
    files["/sys/fs/cgroup/memory/box/memory.usage_in_bytes"] = str(2 * GIB)
    files["/sys/fs/cgroup/memory/box/memory.stat"] = f"inactive_file 7\ntotal_inactive_file {GIB // 2}\n"
    assert limit(files) == 3 * GIB // 2


def test_52_a_system_that_says_nothing_is_an_error_with_the_way_out(monkeypatch):
    assert limit({}) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.delattr(free_memory.os, "sysconf")
    with pytest.raises(ConfigError, match="set kv_memory"):
        limit({})


def test_52_this_machine_has_memory():
    assert 0 < memory_limit() < 2**50
