"""Peaks: what this machine can read and multiply, measured in the same run as whatever is held against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.bench.report import Column, Table
from paged_core.bench.timing import measure

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 256 << 20
"""Far beyond any cache of the machines this is for."""
_ORDER = 2048
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes a second read from memory, and operations a second (a multiply-add is two) in dense products.

    The best of several rounds: a floor must not be lowered by a neighbour's noise. None: not possible here.
    """

    read_bytes: float
    fp32: float
    bf16: float
    int8: float | None

    def rate(self, dtype: str) -> float:
        """Operations a second for weights of `dtype`."""
        return self.fp32 if dtype == "float32" else self.bf16

    def table(self) -> Table:
        """The peaks as a table."""
        table = Table("Peaks of this machine", (Column("peak", "peak"), Column("value", "", ".1f")))
        table.add("memory read, GB/s", self.read_bytes / 1e9)
        for name, rate in (("fp32", self.fp32), ("bf16", self.bf16), ("int8", self.int8)):
            table.add(f"{name} product, Gop/s", None if rate is None else rate / 1e9)
        return table


def measure_peaks(read_bytes: int = _READ_BYTES, order: int = _ORDER) -> Peaks:
    """Measure with torch's own thread count, as the engine left it: about two seconds."""
    import torch

    floats = torch.ones(read_bytes // 4)
    read = max(_best(floats.numel() * 4, read_once) for read_once in (floats.sum, floats.amax))
    work = 2 * order**3
    square = torch.ones(order, order)
    brain = square.bfloat16()
    return Peaks(
        read_bytes=read,
        fp32=_best(work, lambda: square @ square),
        bf16=_best(work, lambda: brain @ brain),
        int8=_int8_rate(order),
    )


def _int8_rate(order: int) -> float | None:
    import torch

    if not hasattr(torch, "_int_mm"):
        return None
    small = torch.ones(order, order, dtype=torch.int8)
    return _best(2 * order**3, lambda: torch._int_mm(small, small))


def _best(amount: float, action: Callable[[], object]) -> float:
    return amount / measure(action, _ROUNDS).best
