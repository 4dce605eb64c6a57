"""Large pages are asked for only where whole ones fit; contents and other tensors are untouched."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from paged_core.model.memory import prefer_huge_pages, release_free_memory

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
