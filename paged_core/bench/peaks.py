"""Peaks: what this machine can read and multiply, measured in the same run as whatever is held against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.bench.report import Column, Table
from paged_core.bench.timing import measure
from paged_core.errors import ConfigError

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
        """Operations a second for weights of `dtype`, int8 included. ConfigError where int8 could not be measured."""
        if dtype != "int8":
            return self.fp32 if dtype == "float32" else self.bf16
        if self.int8 is None:
            raise ConfigError(
                "this torch has no int8 product (torch._int_mm), hence no int8 peak to hold a time against"
            )
        return self.int8

    def table(self) -> Table:
        """The peaks as a table."""
        table = Table("Peaks of this machine", (Column("peak", "peak"), Column("value", "", ".1f")))
        table.add("memory read, GB/s", self.read_bytes / 1e9)
        for name, rate in (("fp32", self.fp32), ("bf16", self.bf16), ("int8", self.int8)):
            table.add(f"{name} product, Gop/s", None if rate is None else rate / 1e9)
        table.notes.append("The int8 product is torch._int_mm: oneDNN, by VNNI where the processor has it.")
        return table


def measure_peaks(read_bytes: int = _READ_BYTES, order: int = _ORDER, clock: str = "wall") -> Peaks:
    """Measure by one of `CLOCKS` with torch's own thread count, as the engine left it: about two seconds."""
    import torch

    floats = torch.ones(read_bytes // 4)
    read = max(_best(floats.numel() * 4, read_once, clock) for read_once in (floats.sum, floats.amax))
    work = 2 * order**3
    square = torch.ones(order, order)
    brain = square.bfloat16()
    small = torch.ones(order, order, dtype=torch.int8)
    return Peaks(
        read_bytes=read,
        fp32=_best(work, lambda: square @ square, clock),
        bf16=_best(work, lambda: brain @ brain, clock),
        int8=_best(work, lambda: torch._int_mm(small, small), clock) if hasattr(torch, "_int_mm") else None,
    )


def _best(amount: float, action: Callable[[], object], clock: str) -> float:
    return amount / measure(action, _ROUNDS, clock=clock).best
