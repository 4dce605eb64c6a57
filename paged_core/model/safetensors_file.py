"""One safetensors file, read by memory map, nothing in its header believed unchecked.

The `safetensors` package reads the same format; this reader exists for its messages (a download that stopped half way
or a git-lfs pointer is told as such, by file and tensor name) and for tensors that view the map without a copy.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from paged_core.errors import ModelFormatError, ModelNotFoundError, ModelUnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
OTHER_SIZES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
OTHER_SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Header entry of one tensor; `begin` and `end` are byte positions in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """Names and tensors of one file. Tensors are views of a private map and keep it alive.

    Raises ModelNotFoundError when the file cannot be opened and ModelFormatError when it is damaged or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # Private and writable: torch may view it without a warning, and nothing can reach the file.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise ModelFormatError(f"{path} is empty; fetch it again") from error
        except OSError as error:
            raise ModelNotFoundError(f"cannot open {path}: {error.strerror or error}") from error
        self.tensors: dict[str, StoredTensor] = self._read_header()

    def tensor(self, name: str) -> Tensor:
        """The stored values. Raises ModelUnsupportedError naming a tensor whose type is not a plain float type."""
        stored = self.tensors[name]
        if stored.dtype not in DTYPES:
            raise ModelUnsupportedError(
                f"{self.path}: tensor {name!r} is of type {stored.dtype}; {', '.join(DTYPES)} are read. "
                "Quantised Hugging Face checkpoints are not run; use a GGUF file."
            )
        dtype = DTYPES[stored.dtype]
        count = math.prod(stored.shape)
        if count == 0:
            return torch.empty(stored.shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=stored.begin).view(stored.shape)

    def _read_header(self) -> dict[str, StoredTensor]:
        size = len(self._map)
        if size < 8:
            raise self._damaged(f"it has {size} bytes, not even a header")
        if self._map[:8] == b"version ":
            raise ModelFormatError(
                f"{self.path} is a git-lfs pointer, not the weights: run `git lfs pull` there, or download it again"
            )
        length = int.from_bytes(self._map[:8], "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise self._damaged(f"its header claims {length} bytes of the {size} there are")
        try:
            header = json.loads(self._map[8 : 8 + length].decode("utf-8"), object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"its header is not sound JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._damaged("its header is not a JSON object")
        header.pop("__metadata__", None)
        tensors = {name: self._entry(name, entry, 8 + length) for name, entry in header.items()}
        self._check_layout(tensors, 8 + length)
        return tensors

    def _entry(self, name: str, entry: Any, start: int) -> StoredTensor:
        if not isinstance(entry, dict):
            raise self._damaged(f"the header entry of {name!r} is not an object")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and isinstance(dtype, str)):
            raise self._damaged(f"the header entry of {name!r} is malformed")
        item_size = DTYPES[dtype].itemsize if dtype in DTYPES else OTHER_SIZES.get(dtype)
        if item_size is None:
            raise ModelUnsupportedError(f"{self.path}: tensor {name!r} has the unknown type {dtype!r}")
        begin, end = offsets
        if end - begin != math.prod(shape) * item_size:
            raise self._damaged(f"tensor {name!r} {dtype} {shape} does not fill its {end - begin} bytes")
        if start + end > len(self._map):
            raise self._damaged(f"tensor {name!r} should end at byte {start + end} of {len(self._map)}")
        return StoredTensor(dtype, tuple(shape), start + begin, start + end)

    def _check_layout(self, tensors: dict[str, StoredTensor], start: int) -> None:
        """Tensors follow each other without overlap or hole up to the last byte, as the format demands."""
        position, previous = start, "the header"
        for name, stored in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
            if stored.begin != position:
                fault = "overlaps" if stored.begin < position else "leaves a hole after"
                raise self._damaged(f"tensor {name!r} {fault} {previous!r}")
            position, previous = stored.end, name
        if position != len(self._map):
            raise self._damaged(f"{len(self._map) - position} bytes follow the last tensor")

    def _damaged(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path} is damaged, cut short or no safetensors file: {what}; fetch it again")


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} occurs twice")
        result[key] = value
    return result
