"""What is measured: steps of equal sequences, moves of blocks, and the bytes and operations that each must cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from paged_core.engine.hardware import cpu_has_bf16, element_bytes, kv_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

OPERATIONS = ("decode", "prefill", "write", "copy", "swap")
KV_DTYPES = {
    "cpu": {"bf16": "bfloat16", "fp32": "float32", "u8": "uint8"},
    "cuda": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn", "u8": "uint8"},
}
"""Element types of keys and values that are measured unless others are asked for, by the capability that stands for
each."""
_CODES = ("uint8", "float8_e4m3fn")


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, key-value heads, and elements of a head."""

    query: int
    kv: int
    size: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} x {self.size}"


@dataclass(frozen=True, slots=True)
class Case:
    """A step: `sequences`, each computing its last `new` tokens of `context` in all.

    `every_type`: with every element type that the plugin has, not with the first alone.
    """

    heads: Heads
    sequences: int
    context: int
    new: int = 1
    every_type: bool = True

    @property
    def kind(self) -> str:
        """decode, prefill or write: a decode of sequences of length one attends to next to nothing."""
        if self.new > 1:
            return "prefill"
        return "write" if self.context == 1 else "decode"

    def kv_bytes(self, kv_dtype: str) -> int:
        """Keys and values that the step attends to, each counted once, with what scales them."""
        return self.sequences * self.context * self._token_bytes(kv_dtype)

    def _token_bytes(self, kv_dtype: str) -> int:
        per_element, per_row = kv_bytes(kv_dtype)
        return 2 * self.heads.kv * (self.heads.size * per_element + per_row)

    def moved_bytes(self, kv_dtype: str, dtype: str) -> int:
        """All that the call must move: q, k and v read, `out` written, K and V written, and what is attended to."""
        tokens, each = self.sequences * self.new, element_bytes(dtype)
        activations = 2 * (self.heads.query + self.heads.kv) * self.heads.size * each
        return tokens * (activations + self._token_bytes(kv_dtype)) + self.kv_bytes(kv_dtype)

    @property
    def ops(self) -> int:
        """Operations of both products, causal pairs only."""
        pairs = self.new * self.context - self.new * (self.new - 1) // 2
        return 4 * self.sequences * pairs * self.heads.query * self.heads.size

    def __str__(self) -> str:
        new = f", last {self.new:,}" if 1 < self.new < self.context else ""
        return f"{self.kind} {self.sequences} x {self.context:,}{new}, {self.heads}"


@dataclass(frozen=True, slots=True)
class Move:
    """So many blocks of all `layers`: copied within the device's pool, or swapped to the host's or back."""

    direction: str  # copy, out, in
    heads: Heads
    blocks: int
    layers: int = 32


def activations(kv_dtype: str, device: str) -> str:
    """Element type of queries, new keys and values beside such a cache: its own, or the device's beside codes."""
    if kv_dtype not in _CODES:
        return kv_dtype
    return "bfloat16" if device == "cuda" or cpu_has_bf16() else "float32"


LLAMA_8B, MULTI_HEAD, SMOLLM2 = Heads(32, 8, 128), Heads(32, 32, 128), Heads(9, 3, 64)
HEADS = {"llama-8b": LLAMA_8B, "multi-head": MULTI_HEAD, "smollm2": SMOLLM2}
GOAL_CASE = Case(LLAMA_8B, 32, 1024)
CHUNK = 2048
"""Tokens of a prompt that a step computes behind those it has."""
_CPU_CASES = (
    GOAL_CASE,
    *(Case(SMOLLM2, num, context) for num in (1, 16, 64) for context in (128, 512, 1024, 2048, 4096)),
    *(Case(heads, 1, length, length) for heads in (SMOLLM2, LLAMA_8B) for length in (512, 2048)),
    Case(LLAMA_8B, 1, 4096, 512),
    *(Case(heads, num, 1) for heads in (SMOLLM2, LLAMA_8B) for num in (16, 256)),
)
_CONTEXTS, _BATCHES = (64, 256, 1024, 4096, 16384, 32768), (1, 8, 32, 128, 256)
_FEW = ((1, 4096), (1, 32768), (32, 1024), (32, 8192))
"""Sequences and context of what is measured with all heads and types."""
_PROMPTS = (64, 256, 1024, 4096, 16384, 32768)
_WRITES = (64, 1024, 8192)


def cases(device: str, operations: Sequence[str], quick: bool) -> list[Case]:
    """The steps that are measured on such a device unless others are asked for."""
    if quick:
        found = [Case(SMOLLM2, 2, 64), Case(SMOLLM2, 1, 64, 64), Case(SMOLLM2, 1, 64, 16), Case(SMOLLM2, 4, 1)]
    else:
        found = list(_CPU_CASES) if device == "cpu" else _gpu_cases()
    return [case for case in found if case.kind in operations]


def chosen(
    operations: Sequence[str], heads: Sequence[Heads], contexts: Sequence[int], batches: Sequence[int]
) -> list[Case]:
    """Every combination of what was asked for. A prompt is computed whole and, where it is longer, in a last chunk."""
    pairs = list(product(heads, batches, contexts))
    found = [Case(each, batch, context) for each, batch, context in pairs if context > 1]
    found += [Case(each, batch, context, context) for each, batch, context in pairs if context > 1]
    found += [Case(each, batch, context, CHUNK) for each, batch, context in pairs if context > CHUNK]
    found += [Case(each, batch, 1) for each, batch in product(heads, batches)]
    return [case for case in found if case.kind in operations]


def _gpu_cases() -> list[Case]:
    few = set(_FEW)
    grid = [pair for pair in product(_BATCHES, _CONTEXTS) if pair not in few]
    decodes = [Case(LLAMA_8B, *pair, every_type=False) for pair in grid]
    decodes += [Case(heads, *pair) for heads in HEADS.values() for pair in _FEW]
    prompts = [(1, length, length) for length in _PROMPTS]
    prompts += [(1, length, CHUNK) for length in _PROMPTS if length > CHUNK] + [(16, 1024, 1024)]
    prefills = [Case(LLAMA_8B, *size, every_type=size == (1, 4096, 4096)) for size in prompts]
    prefills += [Case(heads, 1, 4096, 4096) for heads in (MULTI_HEAD, SMOLLM2)]
    writes = [Case(heads, num, 1, every_type=num == _WRITES[-1]) for heads in HEADS.values() for num in _WRITES]
    return decodes + prefills + writes


def moves(operations: Sequence[str], heads: Sequence[Heads], quick: bool) -> list[Move]:
    """Copies and swaps of few and of many blocks."""
    directions = [*(("copy",) if "copy" in operations else ()), *(("out", "in") if "swap" in operations else ())]
    counts, layers = ((2,), 2) if quick else ((1, 16, 256, 1024), 32)
    return [Move(direction, each, count, layers) for each in heads for direction in directions for count in counts]
