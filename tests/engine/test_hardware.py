from __future__ import annotations

import pytest

from paged_core.device.presence import Presence
from paged_core.engine import hardware
from paged_core.engine.clock import RealClock, VirtualClock
from paged_core.engine.hardware import choose_device, choose_dtype, choose_threads, cpu_has_bf16
from paged_core.errors import ConfigError

ZEN4 = "processor : 0\nflags\t\t: fpu sse avx512f avx512_bf16 avx512_vnni\n"
SKYLAKE = "processor : 0\nflags\t\t: fpu sse avx512f\n"
GRAVITON = "processor : 0\nFeatures : fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(("text", "has"), [(ZEN4, True), (SKYLAKE, False), (GRAVITON, True), ("", False)])
def test_bf16_is_read_from_the_processor_s_flags(text, has):
    assert cpu_has_bf16(lambda path: text) is has


def test_l08_auto_asks_the_hardware_and_says_so(caplog):
    assert choose_dtype("auto", "bfloat16", "cpu", lambda path: ZEN4) == "bfloat16"
    assert choose_dtype("auto", "float16", "cpu", lambda path: ZEN4) == "bfloat16"
    assert choose_dtype("auto", "float32", "cpu", lambda path: ZEN4) == "float32"
    assert not caplog.records
    assert choose_dtype("auto", "bfloat16", "cpu", lambda path: SKYLAKE) == "float32"
    assert "no bfloat16 arithmetic" in caplog.text
    assert choose_dtype("bfloat16", "bfloat16", "cpu", lambda path: SKYLAKE) == "bfloat16"
    assert choose_dtype("auto", "float16", "cuda", lambda path: SKYLAKE) == "float16"


def test_an_unknown_dtype_is_named_with_the_choices():
    with pytest.raises(ConfigError, match=r"'int7'.*float32, bfloat16, float16"):
        choose_dtype("int7", "float32", "cpu")


def test_the_virtual_clock_moves_only_when_told_and_never_back():
    clock = VirtualClock(5.0)
    clock.advance(1.5)
    clock.sleep_until(6.0)
    assert clock.now() == 6.5
    clock.sleep_until(8.0)
    assert clock.now() == 8.0
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_the_real_clock_sleeps_no_shorter_than_asked():
    clock = RealClock()
    deadline = clock.now() + 0.01
    clock.sleep_until(deadline)
    assert clock.now() >= deadline
    clock.sleep_until(deadline - 100)
    clock.advance(3)
    assert clock.now() < deadline + 3


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 0),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 0),
        ({"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "6400000 100000"}, 0),
        (
            {
                "/proc/self/cgroup": "0::/a.slice/b.scope\n",
                "/sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000\n",
                "/sys/fs/cgroup/a.slice/cpu.max": "400000 100000\n",
            },
            4,
        ),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 0),
    ],
)
def test_a_containers_share_of_the_cores_bounds_the_threads(monkeypatch, caplog, files, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert choose_threads(None, lambda path: files.get(path, "")) == threads
    assert ("of 8 cores" in caplog.text) == (threads > 0)
    assert choose_threads(5, lambda path: files.get(path, "")) == 5


def test_a_cuda_device_that_is_not_there_is_refused_with_every_reason_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    missing = Presence((), None, ("there is no NVIDIA driver here", "torch is built without CUDA"), ("install both",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "cuda_presence", lambda: missing)
    assert choose_device("auto") == "cpu"
    with pytest.raises(ConfigError) as caught:
        choose_device("cuda")
    for words in (*missing.reasons, *missing.hints, "--device=cpu or auto"):
        assert words in str(caught.value)
