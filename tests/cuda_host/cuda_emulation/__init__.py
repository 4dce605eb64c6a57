"""CUDA on the host: builds .cu files with g++ and runs them thread by thread (README.md beside this package)."""

from __future__ import annotations

from cuda_emulation.build import COMPILER_MISSING, Build
from cuda_emulation.guarded import GuardedMemory
from cuda_emulation.host import HostKernel, HostKernelError, HostLauncher, Order
from cuda_emulation.values import arguments

__all__ = [
    "COMPILER_MISSING",
    "Build",
    "GuardedMemory",
    "HostKernel",
    "HostKernelError",
    "HostLauncher",
    "Order",
    "arguments",
]
