"""Large pages are asked for only where whole ones fit; what is let go of is nobody's; contents are untouched."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
import torch

from paged_core.model.memory import (
    clean_mappings,
    large_blocks_returned,
    prefer_huge_pages,
    release_code,
    release_free_memory,
)

HUGE = 1 << 21


@pytest.fixture
def advised(monkeypatch):
    calls = []

    class Library:
        def madvise(self, begin, length, advice):
            calls.append((begin.value, length.value, advice))

    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    return calls


@pytest.mark.parametrize("num_bytes", [3 * HUGE, 5 * HUGE + 12345])
def test_only_whole_pages_inside_the_tensor_are_named(advised, num_bytes):
    tensor = torch.zeros(num_bytes, dtype=torch.uint8)
    prefer_huge_pages(tensor)
    ((begin, length, advice),) = advised
    assert begin % HUGE == length % HUGE == 0
    assert tensor.data_ptr() <= begin < begin + length <= tensor.data_ptr() + num_bytes
    assert length >= num_bytes - 2 * HUGE
    assert advice == 14


def test_small_tensors_and_other_devices_are_left_alone(advised):
    prefer_huge_pages(torch.zeros(100))
    prefer_huge_pages(torch.empty(4 * HUGE, device="meta"))
    assert advised == []


def test_both_calls_leave_contents_as_they_are():
    tensor = torch.arange(3 * HUGE // 4, dtype=torch.int32)
    prefer_huge_pages(tensor)
    release_free_memory()
    assert torch.equal(tensor, torch.arange(len(tensor), dtype=torch.int32))


SMAPS = """\
55d0-55d8 r--p 00000000 fe:00 77 /usr/lib/libone.so
Size:                 32 kB
Rss:                  32 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
55d8-55f0 r-xp 00008000 fe:00 77                         /usr/lib/libone.so
Size:                 96 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
55f0-55f8 r--p 00020000 fe:00 77                         /usr/lib/libone.so
Anonymous:            32 kB
55f8-5600 rw-p 00028000 fe:00 77                         /usr/lib/libone.so
Anonymous:             0 kB
5600-5608 r--s 00000000 fe:00 78                         /usr/share/shared
Anonymous:             0 kB
5608-5610 r-xp 00000000 00:00 0
Anonymous:             0 kB
5610-5618 r-xp 00000000 fe:00 79                         /usr/lib/libgone.so (deleted)
Anonymous:             0 kB
5618-5620 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
"""


def test_only_unwritable_mappings_of_files_without_pages_of_their_own_are_let_go():
    assert clean_mappings(SMAPS) == [(0x55D0, 0x55D8), (0x55D8, 0x55F0)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_code_that_was_let_go_runs_as_before():
    values = torch.randn(64, 64)
    before = values @ values
    resident = resident_file_kib()
    release_code()
    assert resident_file_kib() < resident / 2
    assert torch.equal(values @ values, before)


def resident_file_kib():
    """Kilobytes of files that lie in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


def test_without_proc_nothing_is_let_go(tmp_path, advised):
    release_code(str(tmp_path / "none"))
    assert advised == []


def test_large_blocks_go_back_at_once_only_while_it_is_asked_for(monkeypatch):
    calls = []

    class Library:
        def mallopt(self, option, value):
            calls.append((option, value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr("sys.platform", "linux")
    with large_blocks_returned():
        assert calls == [(-3, 1 << 19)]
    assert calls[1:] == [(-3, 32 << 20), (-1, 64 << 20)]


def test_where_the_allocator_has_no_such_option_nothing_happens(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with large_blocks_returned():
        pass
