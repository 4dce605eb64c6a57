"""Tiles, warps and stages by rule: from what is known when a backend is bound, never from lengths.

Chosen by what the assembler reports of registers, spills and shared memory for compute capability 8.0, 9.0 and 10.0:

* no variant spills: float32, which multiplies without tensor cores, and e4m3 widened by integers take small tiles;
* decode waits for memory, so two or three programs shall fit a processor with their loads under way (five stages hold
  two tiles of keys and values: loads wait for the block table, which takes two of the stages);
* prefill waits for tensor cores: those of capability 9.0 and 10.0 read a product's operands from shared memory, and
  want tiles of 128 keys for that not to be what they wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_attn_triton.shapes import Shape


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is cut: `tile` keys at once, for `rows` rows of queries, by `warps` in `stages` of loads."""

    rows: int
    tile: int
    warps: int
    stages: int


def decode_config(shape: Shape) -> Config:
    """Rows are the heads of a group, 16 at least, as tensor cores have it."""
    rows = max(16, padded(shape.group))
    if not shape.capability:
        return Config(rows, 64, 4, 1)
    if shape.dtype == "float32":
        return Config(rows, 16, 8 if shape.in_codes else 4, 3)
    return Config(rows, max(32, min(64 if shape.in_codes else 128, 8192 // shape.width)), 4, 5)


def prefill_config(shape: Shape, plain: bool) -> Config:
    """`plain`: neither window nor softcap, which take registers, as masks of narrower heads do.

    Rows depend on neither: a step has one grid for all layers.
    """
    rows, tile, warps = _prefill_tile(shape, plain and not shape.in_codes)
    return Config(max(rows, padded(shape.group)), tile, warps, 3)


def _prefill_tile(shape: Shape, light: bool) -> tuple[int, int, int]:
    """Rows, unless a group has more heads than that; keys; warps."""
    capability, width = shape.capability, shape.width
    if not capability:
        return 128, 64, 4
    if shape.dtype == "float32":
        return (16, 16, 8) if shape.in_codes else (32, 16, 4)
    if shape.in_codes and not shape.by_hardware:
        return (64, 32, 4) if width <= 128 else (64, 32, 8)
    if 90 <= capability < 120:
        return 128, (128 if light else 64) if width <= 128 else (64 if light else 32), 8
    if width <= 128:
        return 128, 64 if width < 128 or (light and shape.head_dim == width) else 32, 8
    return 64, 32, 8  # of which 8.6 and 8.9 have shared memory enough, too


def padded(number: int) -> int:
    """The power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
