"""GuardedMemory: tensors between pages that cannot be accessed, for kernels that run on the host."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import TYPE_CHECKING

from cuda_emulation.build import load_runtime

if TYPE_CHECKING:
    import torch

_POISON = 0xFF
_PROT_NONE = 0
GUARD_BYTES = 256 << 10
"""Behind a tensor, and in front of its pages: address space that cannot be accessed."""


class GuardedMemory:
    """Hands out tensors whose last byte lies before a page without access, and frees them together (`with`).

    In front of a tensor lie up to a page's bytes of NaN; `check` raises AssertionError where a kernel wrote to them.
    Reports of faults call a tensor by its name. Tensors must not be used after the end.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._held: list[tuple[mmap.mmap, int, int, str]] = []  # pages, start of the tensor within, its address, name
        self._end = weakref.finalize(self, _forget, self._held)

    def __enter__(self) -> GuardedMemory:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def like(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """A copy of `tensor` with its strides, NaN between its rows. It is aligned to 16 bytes if its extent allows."""
        import torch

        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
        copy = self.empty((extent,), tensor.dtype, name).as_strided(tensor.shape, tensor.stride())
        with torch.no_grad():
            copy.copy_(tensor)
        return copy

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
        """A tensor full of NaN, or of -1."""
        import torch

        count = 1
        for size in shape:
            count *= size
        num_bytes = count * dtype.itemsize
        page = mmap.PAGESIZE
        inner = -(-num_bytes // page) * page
        pages = mmap.mmap(-1, inner + 2 * GUARD_BYTES)
        base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        ctypes.memset(base + GUARD_BYTES, _POISON, inner)
        for guard in (base, base + GUARD_BYTES + inner):
            if self._libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(GUARD_BYTES), _PROT_NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        start = GUARD_BYTES + inner - num_bytes
        self._held.append((pages, start, base + start, name))
        load_runtime().paged_host_name_region(ctypes.c_size_t(base + start), ctypes.c_size_t(num_bytes), name.encode())
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(pages, dtype=dtype, count=count, offset=start).reshape(shape)

    def check(self) -> None:
        """Assert that nothing was written in front of a tensor."""
        for pages, start, _, name in self._held:
            front = pages[GUARD_BYTES:start]
            written = [len(front) - i for i, byte in enumerate(front) if byte != _POISON]
            assert not written, f"{max(written)} bytes before the begin of {name} were written to"


def _forget(held: list[tuple[mmap.mmap, int, int, str]]) -> None:
    """Reports no longer name these; the pages go with the tensors."""
    for _, _, address, _ in held:
        load_runtime().paged_host_forget_region(ctypes.c_size_t(address))
    held.clear()
