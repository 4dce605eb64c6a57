"""HostLauncher: the `Launcher` of attn_cuda that runs kernels on the CPU."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_attn_cuda.compile import SOURCES

from cuda_emulation.build import Build, line_of, load_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEDULES = ("forward", "reverse", "random")
_LETTERS = {"p": "a pointer", "i": "an integer", "f": "a floating-point number", "s": "a structure"}


class HostKernelError(RuntimeError):
    """A kernel broke a rule of CUDA: names kernel, block, thread, and what it did where."""


class _Launch(ctypes.Structure):
    """`struct Launch` of runtime/state.h."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("schedule", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    )


@dataclass(slots=True)
class Order:
    """In which order threads and blocks run: a name of SCHEDULES, and the seed of `random`."""

    schedule: str = "forward"
    seed: int = 0


class HostLauncher:
    """Builds kernels of `folder` (default: attn_cuda's csrc) on first use and runs them in this thread.

    `order` may change between launches. With `sanitize`, undefined behaviour within a thread is an error too; such
    kernels take longer to compile. The device that it plays has `num_processors` multiprocessors.
    """

    def __init__(self, folder: Path | None = None, *, order: Order | None = None, sanitize: bool = False) -> None:
        self.num_processors = 4
        self.max_shared_bytes = 163 * 1024
        self.order = order or Order()
        self.launches: list[str] = []
        self._folder = folder or SOURCES
        self._sanitize = sanitize
        self._build = Build()
        self._kernels: dict[tuple[str, str], HostKernel] = {}

    def kernel(self, source: str, name: str) -> HostKernel:
        """`name` of `source`, compiled by its first launch."""
        key = (source, name)
        if key not in self._kernels:
            self._kernels[key] = HostKernel(self, name, source)
        return self._kernels[key]

    def build(self, source: str, name: str) -> Path:
        """The shared object of a kernel."""
        return self._build.kernel(self._folder, source, name, sanitize=self._sanitize)


class HostKernel:
    """One instantiation; calling it runs the whole grid."""

    def __init__(self, launcher: HostLauncher, name: str, source: str) -> None:
        self._launcher = launcher
        self._name = name
        self._source = source
        self._library: ctypes.CDLL | None = None
        self._parameters: tuple[tuple[str, int], ...] = ()

    def __call__(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[ctypes._SimpleCData[Any]],
    ) -> None:
        """Run it. Raises HostKernelError; ValueError for a launch that a device would refuse."""
        library = self._loaded()
        self._check(grid, threads, shared_bytes, arguments)
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        order = self._launcher.order
        launch = _Launch(
            entry=ctypes.cast(library.paged_host_entry, ctypes.c_void_p).value,
            arguments=ctypes.addressof(addresses),
            kernel=self._name.encode(),
            grid=(ctypes.c_uint32 * 3)(*grid),
            threads=threads,
            shared_bytes=shared_bytes,
            schedule=SCHEDULES.index(order.schedule),
            seed=order.seed,
        )
        self._launcher.launches.append(self._name)
        _run(launch)

    def _loaded(self) -> ctypes.CDLL:
        if self._library is None:
            load_runtime()
            library = ctypes.CDLL(str(self._launcher.build(self._source, self._name)))
            library.paged_host_letters.restype = ctypes.c_char_p
            library.paged_host_sizes.restype = ctypes.POINTER(ctypes.c_size_t)
            letters, sizes = library.paged_host_letters().decode(), library.paged_host_sizes()
            self._parameters = tuple((letter, sizes[i]) for i, letter in enumerate(letters))
            self._library = library
        return self._library

    def _check(
        self, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: Sequence[ctypes._SimpleCData[Any]]
    ) -> None:
        if not all(1 <= each <= limit for each, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=True)):
            raise ValueError(f"{self._name}: a grid of {grid} blocks")
        if not 1 <= threads <= 1024:
            raise ValueError(f"{self._name}: {threads} threads a block")
        if not 0 <= shared_bytes <= self._launcher.max_shared_bytes:
            raise ValueError(f"{self._name}: {shared_bytes} bytes of shared memory")
        if len(arguments) != len(self._parameters):
            raise ValueError(f"{self._name} takes {len(self._parameters)} arguments, not {len(arguments)}")
        for i, (argument, (letter, size)) in enumerate(zip(arguments, self._parameters, strict=True)):
            if (_letter_of(argument), ctypes.sizeof(argument)) != (letter, size):
                raise ValueError(
                    f"{self._name}: parameter {i} is {_LETTERS[letter]} of {size} bytes, the argument a "
                    f"{type(argument).__name__} of {ctypes.sizeof(argument)}"
                )


_one_launch = threading.Lock()


def _run(launch: _Launch) -> None:
    function = load_runtime().paged_host_launch
    function.restype = ctypes.c_char_p
    code = ctypes.c_size_t(0)
    with _one_launch:
        message = function(ctypes.byref(launch), ctypes.byref(code))
    if message is not None:
        place = line_of(code.value) if code.value else ""
        raise HostKernelError(message.decode() + (f" ({place})" if place else ""))


def _letter_of(argument: Any) -> str:
    if isinstance(argument, ctypes.Structure):
        return "s"
    if isinstance(argument, ctypes.c_void_p):
        return "p"
    return "f" if isinstance(argument, ctypes.c_float | ctypes.c_double) else "i"
