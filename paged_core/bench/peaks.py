"""Peaks: what this machine can read, copy and multiply, measured in the same run as whatever is held against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from paged_core.bench.report import Column, Table
from paged_core.bench.site import enough, repeated, site_of
from paged_core.bench.timing import measure
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from paged_core.bench.site import Site
    from paged_core.bench.timing import Timer

_SIZES = {"cpu": (256 << 20, 2048), "cuda": (2 << 30, 8192)}
"""Bytes that are read, or copied in halves, and rows of the squares that are multiplied. Far beyond any cache."""
_HOST_BYTES = 512 << 20
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes a second from memory, and operations a second (a multiply-add is two) in dense products.

    The best of several rounds: a floor must not be lowered by a neighbour's noise. None: not measured or not possible
    here. `copy_bytes` counts what is read and what is written; `out_bytes` and `in_bytes`, from device to pinned host
    memory and back, count a byte once (on a CPU: half of `copy_bytes`).
    """

    read_bytes: float
    fp32: float
    bf16: float
    int8: float | None
    products: Mapping[str, str] = field(default_factory=dict)  # whose product each rate is
    copy_bytes: float | None = None
    out_bytes: float | None = None
    in_bytes: float | None = None

    def rate(self, dtype: str) -> float:
        """Operations a second for weights of `dtype`, int8 included. ConfigError where int8 could not be measured."""
        if dtype != "int8":
            return self.fp32 if dtype == "float32" else self.bf16
        if self.int8 is None:
            raise ConfigError("nothing here multiplies int8: there is no int8 peak to hold a time against")
        return self.int8

    def table(self) -> Table:
        """The peaks as a table."""
        table = Table(
            "Peaks of this machine", (Column("peak", "peak"), Column("value", "", ",.1f"), Column("by", "by"))
        )
        table.add("memory read, GB/s", self.read_bytes / 1e9, None)
        for name, rate in (
            ("memory copy, read and written, GB/s", self.copy_bytes),
            ("device to host, GB/s", self.out_bytes),
            ("host to device, GB/s", self.in_bytes),
        ):
            if rate is not None:
                table.add(name, rate / 1e9, None)
        for name, rate in (("fp32", self.fp32), ("bf16", self.bf16), ("int8", self.int8)):
            table.add(f"{name} product, Gop/s", None if rate is None else rate / 1e9, self.products.get(name))
        return table


def measure_peaks(
    num_bytes: int | None = None, order: int | None = None, clock: str = "wall", device: str = "cpu"
) -> Peaks:
    """Measure, on a CPU by one of `CLOCKS` with torch's own thread count, as the engine left it: a few seconds.

    A product's peak is that of the fastest linear path that serves here: on some processors torch's plain float32
    product reaches less than half of oneDNN's. float16 is taken to be as fast as bfloat16.
    """
    usual_bytes, usual_order = _SIZES[device]
    site = site_of(device, clock)
    found = _measured(site, num_bytes or usual_bytes, order or usual_order)
    site.release()
    return found


def _measured(site: Site, num_bytes: int, order: int) -> Peaks:
    import torch

    floats = torch.ones(num_bytes // 4, device=site.device)
    read = max(_best(4 * len(floats), read_once, site) for read_once in (floats.sum, floats.amax))
    half = len(floats) // 2
    copy = _best(8 * half, partial(floats[:half].copy_, floats[half : 2 * half]), site)
    out, back = (copy / 2, copy / 2) if site.accelerator is None else _over_the_bus(site, floats)
    with torch.inference_mode():
        found = {name: _fastest(_products(name, order, site.device), order, site) for name in _TYPES}
    rates = {name: None if fastest is None else fastest[0] for name, fastest in found.items()}
    assert rates["fp32"] is not None  # torch's own product always serves
    assert rates["bf16"] is not None
    products = {name: fastest[1] for name, fastest in found.items() if fastest is not None}
    return Peaks(read, rates["fp32"], rates["bf16"], rates["int8"], products, copy, out, back)


def _over_the_bus(site: Site, floats: torch.Tensor) -> tuple[float, float]:
    """Bytes a second to pinned host memory and back."""
    assert site.accelerator is not None
    count = min(_HOST_BYTES // 4, len(floats))
    host, on_device = site.accelerator.pinned((count,), floats.dtype), floats[:count]
    out = _best(4 * count, partial(site.accelerator.copy, host, on_device), site, site.idle_timer)
    return out, _best(4 * count, partial(site.accelerator.copy, on_device, host), site, site.idle_timer)


_TYPES = {"fp32": ("float32",), "bf16": ("bfloat16",), "int8": ("bfloat16", "float32")}


def _products(name: str, order: int, device: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    """Products of two squares of this element type, by every path that serves."""
    import torch

    from paged_core.model.linear.choice import PATHS
    from paged_core.model.place import Place

    for dtype in _TYPES[name]:
        # random: a GPU multiplies ones with less power, hence at a clock that attention never sees
        square = torch.randn(order, order, device=device).to(getattr(torch, dtype))
        place = Place(device, square.dtype, "int8" if name == "int8" else "none")
        for path in PATHS:
            if not path.lacks(place):
                yield path.name, partial(path(square.clone(), None), square)
    if name == "int8" and device.type == "cpu" and hasattr(torch, "_int_mm"):
        small = torch.ones(order, order, dtype=torch.int8)
        yield "torch._int_mm", partial(torch._int_mm, small, small)


def _fastest(products: Iterator[tuple[str, Callable[[], object]]], order: int, site: Site) -> tuple[float, str] | None:
    """Operations a second of the fastest, and its name."""
    return max(((_best(2 * order**3, product, site), name) for name, product in products), default=None)


def _best(amount: float, action: Callable[[], object], site: Site, timer: Timer | None = None) -> float:
    """`amount` a second: the best of samples that are long enough for the site."""
    timer = timer or site.timer
    count = enough(measure(action, 1, clock=timer).best, site)
    return amount * count / measure(repeated(action, count), _ROUNDS, warmups=0, clock=timer).best
