"""Peaks: what this machine can read and multiply, measured in the same run as whatever is held against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from paged_core.bench.report import Column, Table
from paged_core.bench.timing import measure
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    products: Mapping[str, str] = field(default_factory=dict)  # whose product each rate is

    def rate(self, dtype: str) -> float:
        """Operations a second for weights of `dtype`, int8 included. ConfigError where int8 could not be measured."""
        if dtype != "int8":
            return self.fp32 if dtype == "float32" else self.bf16
        if self.int8 is None:
            raise ConfigError("nothing here multiplies int8: there is no int8 peak to hold a time against")
        return self.int8

    def table(self) -> Table:
        """The peaks as a table."""
        table = Table("Peaks of this machine", (Column("peak", "peak"), Column("value", "", ".1f"), Column("by", "by")))
        table.add("memory read, GB/s", self.read_bytes / 1e9, None)
        for name, rate in (("fp32", self.fp32), ("bf16", self.bf16), ("int8", self.int8)):
            table.add(f"{name} product, Gop/s", None if rate is None else rate / 1e9, self.products.get(name))
        return table


def measure_peaks(read_bytes: int = _READ_BYTES, order: int = _ORDER, clock: str = "wall") -> Peaks:
    """Measure by one of `CLOCKS` with torch's own thread count, as the engine left it: about three seconds.

    A product's peak is that of the fastest linear path that serves here: on some processors torch's plain float32
    product reaches less than half of oneDNN's.
    """
    import torch

    floats = torch.ones(read_bytes // 4)
    read = max(_best(floats.numel() * 4, read_once, clock) for read_once in (floats.sum, floats.amax))
    with torch.inference_mode():
        found = {name: _fastest(_products(name, order), order, clock) for name in ("fp32", "bf16", "int8")}
    rates = {name: None if fastest is None else fastest[0] for name, fastest in found.items()}
    assert rates["fp32"] is not None  # torch's own product always serves
    assert rates["bf16"] is not None
    products = {name: fastest[1] for name, fastest in found.items() if fastest is not None}
    return Peaks(read, rates["fp32"], rates["bf16"], rates["int8"], products)


def _products(name: str, order: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Products of two squares of this element type, by every path that serves."""
    import torch

    from paged_core.model.linear.choice import PATHS
    from paged_core.model.place import Place

    types = {"fp32": (torch.float32,), "bf16": (torch.bfloat16,), "int8": (torch.bfloat16, torch.float32)}
    for dtype in types[name]:
        square = torch.ones(order, order, dtype=dtype)
        place = Place(torch.device("cpu"), square.dtype, "int8" if name == "int8" else "none")
        for path in PATHS:
            if not path.lacks(place):
                yield path.name, partial(path(square.clone(), None), square)
    if name == "int8" and hasattr(torch, "_int_mm"):
        small = torch.ones(order, order, dtype=torch.int8)
        yield "torch._int_mm", partial(torch._int_mm, small, small)


def _fastest(products: Iterator[tuple[str, Callable[[], object]]], order: int, clock: str) -> tuple[float, str] | None:
    """Operations a second of the fastest, and its name."""
    return max(((_best(2 * order**3, product, clock), name) for name, product in products), default=None)


def _best(amount: float, action: Callable[[], object], clock: str) -> float:
    return amount / measure(action, _ROUNDS, clock=clock).best
