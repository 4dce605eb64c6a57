"""The parameters of a kernel, read from its machine code: what a launch has to pass."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAMETER = 0x17  # EIATTR_KPARAM_INFO
_SIZED = 4  # EIFMT_SVAL: an attribute that says how long it is


def parameter_sizes(code: bytes, symbol: str) -> list[int]:
    """Bytes of each parameter of a kernel of a cubin, in order. Raises KeyError where it has no such kernel."""
    info = dict(_sections(code))[f".nv.info.{symbol}"]
    sizes, at = {}, 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        if (form, attribute) == (_SIZED, _PARAMETER):
            _, ordinal, _, packed = struct.unpack_from("<IHHI", info, at + 4)
            sizes[ordinal] = packed >> 18
        at += 4 + (length if form == _SIZED else 0)
    return [sizes[ordinal] for ordinal in sorted(sizes)]


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    length, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + index * length) for index in range(count)]
    strings = heads[names][4]
    for name, _, _, _, offset, size in heads:
        start = strings + name
        yield elf[start : elf.index(b"\0", start)].decode(), elf[offset : offset + size]
