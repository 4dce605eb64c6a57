"""What the one file that speaks to torch.cuda promises, on a GPU; and that it is the only one."""

from __future__ import annotations

import contextlib
import gc
import re
from types import SimpleNamespace

import pytest
import torch

from paged_core.device.stream import CudaAccelerator

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_nobody_else_orders_work_on_a_gpu(repository):
    """Streams, events, graphs, pinned memory. Looking at a device's properties is free to all."""
    ordering = re.compile(r"torch\.cuda\.(Stream|Event|stream|graph|CUDAGraph|synchronize|cudart)\b|pin_memory")
    files = [*(repository / "paged_core").rglob("*.py"), *(repository / "plugins").glob("*/paged_*/**/*.py")]
    users = {path.relative_to(repository).as_posix() for path in files if ordering.search(path.read_text())}
    orderly = {user for user in users if not user.startswith("paged_core/bench/")}  # they measure, and may wait
    assert orderly == {"paged_core/device/stream.py", "paged_core/device/upload.py"}


def test_nothing_is_collected_during_a_capture_whether_it_succeeds_or_not(monkeypatch):
    @contextlib.contextmanager
    def capturing(graph, **options):
        assert options == {"pool": "the pool", "capture_error_mode": "thread_local"}
        yield

    for name, value in {"CUDAGraph": object, "graph_pool_handle": lambda: "the pool", "graph": capturing}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    device, seen = CudaAccelerator(torch.device("cpu")), []
    device.capture(lambda: seen.append(gc.isenabled()))
    with pytest.raises(ZeroDivisionError):
        device.capture(lambda: seen.append(1 / 0))
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize(("answer", "reason"), [(0, ""), (2, "cudaHostRegister of 4,096 bytes failed with error 2")])
def test_pinning_says_why_it_failed(monkeypatch, answer, reason):
    asked = []
    runtime = SimpleNamespace(cudaHostRegister=lambda *arguments: asked.append(arguments) or answer)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = torch.zeros(1024)
    assert CudaAccelerator(torch.device("cpu")).pin(memory) == reason
    assert asked == [(memory.data_ptr(), 4096, 0)]


@pytest.mark.gpu
@gpu
def test_a_stream_waits_for_an_event_of_another():
    device = CudaAccelerator(torch.device("cuda"))
    side, event, back = device.stream(), device.event(), device.event()
    x = torch.zeros(1 << 24, device="cuda")
    for _ in range(20):
        x.add_(1)
    event.record()
    with device.on(side):
        event.wait()
        seen = x.clone()
        back.record()
    back.wait()
    x.zero_()
    back.synchronize()
    assert seen.max().item() == seen.min().item() == 20


@pytest.mark.gpu
@gpu
def test_memory_is_pinned_where_it_is_and_given_back():
    device = CudaAccelerator(torch.device("cuda"))
    pool = torch.ones(3 << 20)
    assert not device.is_pinned(pool)
    assert device.pin(pool) == ""
    assert device.is_pinned(pool)
    assert device.is_pinned(pool[1 << 20 :])
    there = torch.empty(3 << 20, device="cuda")
    device.copy(there, pool)
    assert there.sum().item() == 3 << 20
    assert "failed with error" in device.pin(pool)  # twice
    assert torch.ones(4, device="cuda").sum().item() == 4  # that failure is nobody else's
    device.unpin(pool)
    assert not device.is_pinned(pool)


@pytest.mark.gpu
@gpu
def test_time_between_events_is_the_devices():
    device = CudaAccelerator(torch.device("cuda"))
    begin, end = device.event(timed=True), device.event(timed=True)
    begin.record()
    torch.ones(1 << 20, device="cuda").add_(1)
    end.record()
    end.synchronize()
    assert 0 < end.seconds_since(begin) < 60
    free, total = device.memory()
    assert 0 < free < total
