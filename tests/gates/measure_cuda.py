"""Compile every kernel of attn_cuda for one architecture and print its resources: python measure_cuda.py sm_90.

A program of its own, so that no compiler runs in the process of the tests. Prints one line of JSON: the compiler's
version, and each kernel's figures by name.
"""

from __future__ import annotations

import ctypes
import json
import sys

from cubin import parameter_sizes
from paged_attn_cuda.compile import Compiler
from paged_attn_cuda.kernels import PARAMETERS, instances
from paged_attn_cuda.toolchain import find_toolchain
from ptxas import resources

from paged_core.settings import cache_dir


def main(arch: str) -> None:
    """Compile through the plugin's own compiler, options and cache, so that the gate is what users run.

    Fails where a launch would pass arguments of other sizes than the kernel's parameters.
    """
    compiler = Compiler(arch, cache_dir() / "gates" / "cuda")
    kernels = {}
    for instance in instances():
        binary = compiler.compile(instance.source, instance.name)
        passed = [ctypes.sizeof(scalar) for scalar in PARAMETERS[instance.family].values()]
        taken = parameter_sizes(binary.code, binary.symbol)
        if passed != taken:
            sys.exit(f"{instance.name} takes parameters of {taken} bytes, kernels.py passes arguments of {passed}")
        kernels[instance.name] = resources(binary.log, instance.shared_bytes)
    version = ".".join(map(str, find_toolchain().nvrtc))
    print(json.dumps({"compiler": f"NVRTC {version}", "kernels": kernels}))


if __name__ == "__main__":
    main(sys.argv[1])
