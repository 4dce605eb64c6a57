"""What the backend needs of whoever compiles and starts its kernels: a GPU's driver, or the emulation on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence


class Kernel(Protocol):
    """One compiled instantiation of a `__global__` template."""

    def __call__(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[ctypes._SimpleCData[Any]],
    ) -> None:
        """Queue it on torch's current stream (the emulation: run it): `threads` a block, `shared_bytes` dynamic memory.

        `arguments` are one ctypes scalar a parameter (c_void_p for a pointer, c_int32, c_int64, c_float). Their values
        are read before this returns: the caller fills them anew for its next launch.
        """


class Launcher(Protocol):
    """A device and its compiler."""

    num_processors: int
    """Multiprocessors: how many blocks of threads it takes to keep the device busy."""

    def kernel(self, source: str, name: str) -> Kernel:
        """Compile, or find compiled, `name` ("paged::decode<paged::bf16, paged::bf16, 128>") of csrc/`source`."""
