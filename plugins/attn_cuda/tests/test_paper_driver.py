"""The real cuda.core, on a driver that has no GPU: what a launch hands to the driver is what the kernel will read.

The other tests of launching replace cuda.core; here only libcuda is replaced, by a hundred lines of C.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from paged_attn_cuda.toolchain import find_toolchain

HERE = Path(__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("cc")
SOURCE = """
namespace paged {
template <class T> __global__ void fill(T* to, long long count, int first, float step) { to[0] = count + first * step; }
}
"""
LEGACY_DEFAULT_STREAM = 1  # CU_STREAM_LEGACY, by which the driver knows torch's stream 0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    reasons = find_toolchain().reasons
    if reasons or COMPILER is None:
        pytest.skip("; ".join([*reasons, *([] if COMPILER else ["there is no C compiler for the driver on paper"])]))
    folder = tmp_path_factory.mktemp("paper")
    (folder / "fill.cu").write_text(SOURCE)
    library = folder / "libcuda.so.1"
    command = [COMPILER, "-shared", "-fPIC", "-o", str(library), str(HERE / "paper_driver.c")]
    subprocess.run(command, check=True)
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    done = subprocess.run(
        [sys.executable, str(HERE / "paper_launch.py"), str(folder), "paged::fill<float>"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_device_is_asked_for_its_processors_capability_and_shared_memory(report):
    assert report["device"] == [132, [9, 0], 232448]


def test_grid_threads_and_shared_memory_arrive(report):
    first, second = report["launches"]
    assert (first["grid"], first["block"], first["shared_bytes"]) == ([3, 2, 1], [128, 1, 1], 512)
    assert (second["grid"], second["block"], second["shared_bytes"]) == ([4, 1, 5], [64, 1, 1], 100_000)


def test_launches_go_to_the_stream_that_was_current(report):
    assert [launch["stream"] for launch in report["launches"]] == [LEGACY_DEFAULT_STREAM, 77]


def test_the_driver_reads_each_argument_in_its_own_size(report):
    half = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    for launch in report["launches"]:
        assert launch["values"] == [2**47, 2**64 - 5, 2**32 - 7, half]


def test_large_shared_memory_is_opted_in_to_and_too_much_is_refused(report):
    assert report["allowed_shared"] == 100_000
    assert "asks for 300000 bytes" in report["refused"]
    assert "allows 232448" in report["refused"]
