"""Launch a kernel through the real cuda.core on the driver on paper, and print what reached it as JSON.

A program of its own: the driver is found by LD_LIBRARY_PATH, which is read when a process starts.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from cuda.core import Device
from paged_attn_cuda.compile import Compiler
from paged_attn_cuda.driver import DeviceLauncher

from paged_core.errors import PluginContractError

SIZES = (8, 8, 4, 4)


class Launch(ctypes.Structure):
    """As in paper_driver.c."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("kernel", ctypes.c_uint64),
        ("values", ctypes.c_uint64 * 32),
        ("num_values", ctypes.c_int),
    )


def main(sources: Path, name: str) -> None:
    """Two streams, ordinary and large shared memory, and more than there is."""
    driver = ctypes.CDLL("libcuda.so.1")
    (ctypes.c_size_t * 32).in_dll(driver, "parameter_sizes")[: len(SIZES)] = list(SIZES)
    ctypes.c_int.in_dll(driver, "num_parameters").value = len(SIZES)
    compiler = Compiler("sm_90", None, sources)
    symbol = compiler.compile("fill.cu", name).symbol
    (ctypes.c_char * 512).in_dll(driver, "kernel_symbol").value = symbol.encode()
    current = SimpleNamespace(cuda_stream=0)
    torch.cuda.current_stream = lambda index: current  # type: ignore[assignment,misc]
    device = Device(0)
    device.set_current()
    launcher = DeviceLauncher(device, 0, compiler)
    kernel = launcher.kernel("fill.cu", name)
    arguments = (ctypes.c_void_p(2**47), ctypes.c_int64(-5), ctypes.c_int32(-7), ctypes.c_float(0.5))
    kernel((3, 2, 1), 128, 512, arguments)
    current.cuda_stream = 77
    kernel((4, 1, 5), 64, 100_000, arguments)
    refused = ""
    try:
        kernel((1, 1, 1), 64, 300_000, arguments)
    except PluginContractError as error:
        refused = str(error)
    count = ctypes.c_int.in_dll(driver, "num_launched").value
    launches = list((Launch * 64).in_dll(driver, "launched"))[:count]
    report = {
        "device": [launcher.num_processors, launcher.capability, launcher.max_shared_bytes],
        "launches": [
            {
                "grid": list(each.grid),
                "block": list(each.block),
                "shared_bytes": each.shared_bytes,
                "stream": each.stream,
                "values": list(each.values)[: each.num_values],
            }
            for each in launches
        ],
        "allowed_shared": ctypes.c_int.in_dll(driver, "allowed_shared").value,
        "refused": refused,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
