"""Products: runs the native matrix products of one thread of the program; PackedWeight: a weight in their order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_core.native.team import Team, native_function

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

PANEL = 32  # outputs that are packed together
GROUP = 128  # inputs that share a scale in int8, about
ITEM_ROWS = 96  # at most, of an item; their sums take half of the first cache
FEW_ROWS = 48  # up to which a panel's rows stay together, so that its weights are read once
SMALL_WORK = 1 << 16  # products of numbers below which one thread is faster than waking a second
_PATCH = 6


def group_of(inputs: int) -> int:
    """How many of `inputs` share a scale: groups as equal as whole quads allow, of about GROUP."""
    number = max(1, round(inputs / GROUP))
    return -(-inputs // (4 * number)) * 4


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs]. Both are padded: `inputs` to whole lanes, the panels with zeros.

    data: uint8, panels of `panel_bytes`; scales: float32 [outputs] in int8, else None; group: inputs that share a scale
    there; bias: bfloat16 [outputs] or None; is_gated: a panel holds 16 outputs of gate, then 16 of up, and the product
    is silu(gate) * up.
    """

    data: Tensor
    panel_bytes: int
    inputs: int
    outputs: int
    scales: Tensor | None
    bias: Tensor | None
    is_gated: bool
    group: int = GROUP

    @property
    def width(self) -> int:
        """Numbers in a row of the product."""
        return self.outputs // 2 if self.is_gated else self.outputs

    @property
    def num_panels(self) -> int:
        """Panels in `data`."""
        return -(-self.outputs // PANEL)

    @property
    def num_groups(self) -> int:
        """Scales of one row of inputs, 0 in bfloat16."""
        return 0 if self.scales is None else -(-self.inputs // self.group)

    def parameters(self, kind: int) -> NDArray[np.int64]:
        """What the product is told of the weight; `kind` as `products` has it. The rest is zero."""
        from paged_core.native import products as at

        p = np.zeros(at.NUM_PARAMETERS, dtype=np.int64)
        p[at.WEIGHT], p[at.PANEL_BYTES] = self.data.data_ptr(), self.panel_bytes
        p[at.INPUTS], p[at.OUTPUTS] = self.inputs, self.outputs
        p[at.BIAS] = 0 if self.bias is None else self.bias.data_ptr()
        p[at.WEIGHT_SCALES] = 0 if self.scales is None else self.scales.data_ptr()
        p[at.GROUP], p[at.KIND] = self.group, at.GATED if self.is_gated else kind
        return p


class Products:
    """Products on a team of threads. Used by one thread at a time; owns the scratch of its workers."""

    def __init__(self, team: Team) -> None:
        from paged_core.native import products as at

        self.team = team
        self._at = at
        self._compiled = compiled_products()
        self._counters = np.zeros(2, dtype=np.int64)
        self._sums = torch.empty(at.SUMS_BYTES * team.num_threads, dtype=torch.uint8)
        self._quantized = torch.empty(0, dtype=torch.uint8)
        self._scales = torch.empty(0)

    def multiply(self, x: Tensor, weight: PackedWeight, out: Tensor | None = None) -> Tensor:
        """x [rows, inputs] bfloat16, contiguous -> [rows, width], bfloat16; into `out`, if given.

        `out` is contiguous; in float32 it takes the same numbers.
        """
        at, rows = self._at, len(x)
        if out is None:
            out = torch.empty((rows, weight.width), dtype=torch.bfloat16)
        if rows == 0:
            return out
        workers = 1 if rows * weight.inputs * weight.outputs < SMALL_WORK else self.team.num_threads
        p = weight.parameters(at.WIDE if out.dtype == torch.float32 else at.PLAIN)
        items = work_items(rows, weight.num_panels, workers)
        p[at.X], p[at.X_STRIDE] = x.data_ptr(), x.shape[1] * 2
        if weight.scales is not None:
            p[at.X], p[at.INPUT_SCALES] = self._quantize(x, weight, workers)
            p[at.X_STRIDE] = x.shape[1]
        p[at.OUT], p[at.OUT_STRIDE] = out.data_ptr(), out.shape[1] * out.element_size()
        p[at.ITEMS], p[at.NUM_ITEMS] = items.ctypes.data, len(items)
        p[at.NEXT], p[at.SUMS] = self._counters.ctypes.data, self._sums.data_ptr()
        self._run(self._compiled.pairs if weight.scales is None else self._compiled.quads, p, workers)
        return out

    def _quantize(self, x: Tensor, weight: PackedWeight, workers: int) -> tuple[int, int]:
        """Addresses of the quantised rows and of their scales, good until the next call."""
        (rows, size), num_groups = x.shape, weight.num_groups
        if self._quantized.numel() < rows * size:
            self._quantized = torch.empty(rows * size, dtype=torch.uint8)
        if self._scales.numel() < rows * num_groups:
            self._scales = torch.empty(rows * num_groups)
        targets = self._quantized.data_ptr(), self._scales.data_ptr()
        operands = (self._counters.ctypes.data, x.data_ptr(), size * 2, *targets, rows, size, weight.group)
        p = np.array(operands, dtype=np.int64)
        self._run(self._compiled.quantize, p, workers if rows > _PATCH else 1)
        return targets

    def _run(self, function: Any, parameters: NDArray[np.int64], workers: int) -> None:
        self._counters[:] = 0
        self.team.run(function, int(parameters.ctypes.data), workers)


@lru_cache(maxsize=512)
def work_items(rows: int, num_panels: int, workers: int) -> NDArray[np.int64]:
    """Items [number, (first panel, end, first row, end)] of one product, to be claimed in this order.

    Whoever keeps their address keeps the array: the cache forgets.

    Few rows: ranges of panels, an even number, that become shorter towards the end, so that workers end together.
    Many: two panels and at most ITEM_ROWS rows, rows in turn while the panels' weights are in the cache.
    """
    if rows <= FEW_ROWS:
        ranges, first = [], 0
        while first < num_panels:
            left = num_panels - first
            end = min(num_panels, first + max(1 if left <= 2 * workers else 2, left // (2 * workers) // 2 * 2))
            ranges.append((first, end, 0, rows))
            first = end
        return np.array(ranges, dtype=np.int64)
    parts = max(-(-rows // ITEM_ROWS), workers)
    step = -(-rows // (parts * _PATCH)) * _PATCH
    return np.array(
        [
            (panel, min(panel + 2, num_panels), row, min(row + step, rows))
            for panel in range(0, num_panels, 2)
            for row in range(0, rows, step)
        ],
        dtype=np.int64,
    )


@dataclass(frozen=True, slots=True)
class CompiledProducts:
    """Native functions, and the objects that own their machine code."""

    pairs: Any
    quads: Any
    quantize: Any
    addresses: tuple[int, int, int]
    owners: tuple[Any, ...]


@cache
def compiled_products() -> CompiledProducts:
    """Compile, or load from the cache. Functions for instructions that the processor lacks must not be run."""
    from paged_core.native import products
    from paged_core.native.compile import compile_native, source_digest

    digest = source_digest([Path(products.__file__)])
    owners = (
        compile_native(products.product_function(False, digest)),
        compile_native(products.product_function(True, digest)),
        compile_native(products.quantize_function(digest)),
    )
    addresses = tuple(owner.address for owner in owners)
    pairs, quads, quantize = (native_function(address) for address in addresses)
    return CompiledProducts(pairs, quads, quantize, (addresses[0], addresses[1], addresses[2]), owners)


_here = threading.local()


def products_of_this_thread() -> Products:
    """The products that the calling thread uses, on as many threads as torch does."""
    num_threads = torch.get_num_threads()
    products: Products | None = getattr(_here, "products", None)
    if products is None or products.team.num_threads != num_threads:
        products = _here.products = Products(Team(num_threads))
    return products
