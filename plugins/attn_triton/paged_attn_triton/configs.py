"""Tiles, warps and stages by rule: from what is known when a backend is bound, never from lengths.

Chosen by registers, shared memory and occupancy as the assembler reports them for compute capability 8.0, 9.0 and 10.0;
no variant spills.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is cut: `tile` keys at once, for `rows` rows of queries, by `warps` in `stages` of loads."""

    rows: int
    tile: int
    warps: int
    stages: int


def decode_config(width: int, element_bytes: int, group: int, is_float32: bool) -> Config:
    """Rows are the heads of a group, 16 at least, as tensor cores have it."""
    rows = max(16, padded(group))
    if is_float32:
        return Config(rows, 32 if width <= 128 else 16, 4, 2)
    tile = 64 if width <= 128 else 32
    return Config(rows, tile, 4, 3)


def prefill_config(width: int, group: int, is_float32: bool, capability: int) -> Config:
    """128 rows where registers hold them; a group that is larger makes its own rows."""
    least = padded(group)
    if is_float32:
        return Config(max(32, least), 32, 4, 2)
    if width <= 128:
        return Config(max(128, least), 64, 8 if width == 128 else 4, 3 if capability >= 90 else 2)
    return Config(max(64, least), 32, 4, 2)


def padded(number: int) -> int:
    """The power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
