"""The threads that run native kernels: torch's own OpenMP pool where it can be reached, else a small pool of ours."""

from __future__ import annotations

import ctypes
import logging
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Team:
    """Runs one native function on several threads at once and returns when all of them are done.

    torch's operators leave the threads of its OpenMP pool spinning for the next operator. A second pool would have to
    share the cores with them, so a call here goes through `GOMP_parallel` of the very libgomp that torch loaded: the
    same warm threads alternate between torch's matrix products and these kernels. libgomp keeps one team per calling
    thread, so two engines in two threads do not meet. ctypes releases the GIL for the duration of a call.

    Measured on 2 cores (16 sequences of 512 tokens, 9/3 heads of 64, bf16; microseconds, lower quartiles of two runs):
    a layer's call alone: this 122 and 138, a pool of Python threads 238 and 235, one thread 211 and 210; alternating
    with four torch linear layers: this 390 and 602, pool 553 and 713, one thread 482 and 637. Numba's `prange` was
    not timed: its omp layer would bring a second spinning libgomp, and its workqueue layer ends the process when two
    threads enter it. While three other busy processes shared the 2 cores, calls here took milliseconds at the median
    (an OpenMP barrier, torch's included, waits for threads that are not running), the pool's 0.2 to 1.6: the setting
    `threads = 1` is for such machines.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._parallel = _torch_openmp() if num_threads > 1 else None
        self._pool: ThreadPoolExecutor | None = None
        if num_threads > 1 and self._parallel is None:
            log.warning(
                "kernels cannot reach torch's OpenMP pool (no GOMP_parallel in it) and use threads of their own"
            )
            self._pool = ThreadPoolExecutor(num_threads - 1, thread_name_prefix="native")

    def run(self, function: Any, parameters: int, num_workers: int) -> None:
        """Call `function` (a `native_function`) with the address `parameters` on up to `num_workers` threads."""
        workers = min(num_workers, self.num_threads)
        if workers <= 1:
            function(parameters)
        elif self._parallel is not None:
            self._parallel(function, parameters, workers, 0)
        else:
            assert self._pool is not None
            others = [self._pool.submit(function, parameters) for _ in range(workers - 1)]
            function(parameters)
            wait(others)

    def close(self) -> None:
        """End the threads of our own pool; torch's pool is torch's."""
        if self._pool is not None:
            self._pool.shutdown()


NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def native_function(address: int) -> Any:
    """A callable for the native void(void*) at `address`; calls release the GIL."""
    return NATIVE(address)


def _torch_openmp() -> Any | None:
    """`GOMP_parallel` as torch's own library sees it (libgomp, libomp and libiomp5 all export it), or None."""
    import torch

    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            parallel = ctypes.CDLL(str(library)).GOMP_parallel
        except (OSError, AttributeError) as error:
            log.info("no OpenMP entry in %s: %s", library.name, error)
            continue
        parallel.argtypes = [NATIVE, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel
    return None
