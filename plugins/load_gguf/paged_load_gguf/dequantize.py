"""Stored GGUF bytes to numbers. Equal, bit for bit, to `gguf.quants.dequantize`.

The types that make up most files are decoded here into one output array, a cache-sized chunk of blocks at a time; the
`gguf` functions build the same values through several full-sized temporaries and are used for the rest.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

if TYPE_CHECKING:
    from collections.abc import Callable

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

STORED_AS_IS = frozenset({"F32", "F16", "BF16"})
QUANTIZED = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
_NUM_SCRATCH, _MOST_SCRATCH = 8, 1 << 22  # arrays, and elements of one: two each of the sizes in a layer
_UNUSED = 3  # references: the list, the loop and the call that counts
CHUNK_BLOCKS = 2048  # 64 Ki values of a 32-value block: 256 KiB of output, inside the L2 cache


def dequantize(data: Bytes, type_name: str, scratch: Scratch | None = None) -> Floats:
    """Values of flat block bytes of a type in QUANTIZED, as a flat float32 array, one of `scratch` if it can be."""
    block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    blocks = data.reshape(-1, block_bytes)
    decode = _DECODERS.get(type_name)
    # A scale may be infinite in a file that was made so; what it gives is what `gguf` gives, without the warning.
    with np.errstate(invalid="ignore", over="ignore"):
        if decode is None:
            values: Floats = quants.dequantize(blocks, GGMLQuantizationType[type_name])
            return values.reshape(-1)
        size = len(blocks) * block_elements
        flat = np.empty(size, np.float32) if scratch is None else scratch.take(size)
        out = flat.reshape(len(blocks), block_elements)
        for begin in range(0, len(blocks), CHUNK_BLOCKS):
            decode(blocks[begin : begin + CHUNK_BLOCKS], out[begin : begin + CHUNK_BLOCKS])
    return flat


class Scratch:
    """Arrays that are used again once nobody else holds them: the system clears every page of a new one, which for the
    float32 values of a model takes half as long as reading them."""

    def __init__(self) -> None:
        self._arrays: list[Floats] = []

    def take(self, size: int) -> Floats:
        """An array of `size` elements, its content whatever it was."""
        for array in self._arrays:
            if len(array) == size and sys.getrefcount(array) == _UNUSED:
                return array
        array = np.empty(size, np.float32)
        if size <= _MOST_SCRATCH:
            self._arrays = [*self._arrays[1 - _NUM_SCRATCH :], array]
        return array


def _half(blocks: Bytes, column: int) -> Floats:
    """The float16 stored at byte `column` of every block, as float32 [blocks, 1]."""
    stored = np.ascontiguousarray(blocks[:, column : column + 2])
    return stored.view(np.float16).astype(np.float32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 2:]
    np.subtract(packed & 15, 8, out=out[:, :16], casting="unsafe", dtype=np.int8)
    np.subtract(packed >> 4, 8, out=out[:, 16:], casting="unsafe", dtype=np.int8)
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 4:]
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    # 256 values in 8 groups of 32; each group has a 6-bit scale and a 6-bit minimum, packed into 12 bytes:
    #   bytes 0-3  low 6 bits: scales 0-3    top 2 bits: high bits of scales 4-7
    #   bytes 4-7  low 6 bits: minima 0-3    top 2 bits: high bits of minima 4-7
    #   bytes 8-11 low nibble: low bits of scales 4-7    high nibble: of minima 4-7
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 2 & 48)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 2 & 48)], axis=1)
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    halves = out.reshape(-1, 4, 2, 32)
    halves[:, :, 0] = packed & 15
    halves[:, :, 1] = packed >> 4
    groups = out.reshape(-1, 8, 32)
    groups *= (_half(blocks, 0) * scales.astype(np.float32))[:, :, None]
    groups -= (_half(blocks, 2) * minima.astype(np.float32))[:, :, None]


def _q6_k(blocks: Bytes, out: Floats) -> None:
    # 256 values: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales (one per 16 values), one half.
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        nibble = low[:, :, quarter % 2] >> (4 * (quarter // 2)) & 15
        pair = high >> (2 * quarter) & 3
        quarters[:, :, quarter] = (nibble | pair << 4).view(np.int8) - np.int8(32)
    groups = out.reshape(-1, 16, 16)
    groups *= scales[:, :, None]


_DECODERS: dict[str, Callable[[Bytes, Floats], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
