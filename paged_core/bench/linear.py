"""`bench linear`: every path of a linear layer on the shapes of real models, beside the peaks of this machine.

A call finds its weight in memory, not in a cache: copies of the weight, `ROTATION` bytes of them or one, take turns.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paged_core.bench.floor import SCALE_BYTES
from paged_core.bench.report import Column, Table
from paged_core.bench.timing import alternate
from paged_core.engine.hardware import cpu_has_bf16, element_bytes
from paged_core.errors import ConfigError
from paged_core.model.linear.choice import PATHS
from paged_core.model.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from paged_core.bench.peaks import Peaks
    from paged_core.bench.timing import Measurement
    from paged_core.model.linear import Linear

ROTATION = 128 << 20
ROWS = (1, 4, 16, 64, 256)
_LEAST_SWEEP_S = 2e-3  # of one sample: far above a clock's grain


@dataclass(frozen=True, slots=True)
class Shape:
    """A linear layer of a model: inputs and outputs, fused as the decoder fuses them."""

    model: str
    layer: str
    num_in: int
    num_out: int


MODELS: Mapping[str, tuple[Shape, ...]] = {
    "smollm2": (
        Shape("SmolLM2-135M", "qkv", 576, 960),
        Shape("SmolLM2-135M", "o", 576, 576),
        Shape("SmolLM2-135M", "gate_up", 576, 3072),
        Shape("SmolLM2-135M", "down", 1536, 576),
        Shape("SmolLM2-135M", "head", 576, 49152),
    ),
    "llama": (
        Shape("Llama 1.1B", "qkv", 2048, 2560),
        Shape("Llama 1.1B", "o", 2048, 2048),
        Shape("Llama 1.1B", "gate_up", 2048, 11264),
        Shape("Llama 1.1B", "down", 5632, 2048),
        Shape("Llama 1.1B", "head", 2048, 32000),
    ),
}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A path in an element type of inputs and outputs. `weights`: the element type it keeps weights in."""

    path: type[Linear]
    dtype: str
    weights: str

    @property
    def name(self) -> str:
        """The path, and its weights' type where the path leaves that open."""
        return self.path.name if self.weights == "int8" else f"{self.path.name} {_SHORT[self.weights]}"

    def weight_bytes(self, shape: Shape) -> int:
        """Bytes of a weight in memory, scales included."""
        scales = SCALE_BYTES * shape.num_out if self.weights == "int8" else 0
        return shape.num_in * shape.num_out * (1 if self.weights == "int8" else element_bytes(self.weights)) + scales


_SHORT = {"bfloat16": "bf16", "float32": "fp32"}


def contestants(dtypes: Sequence[str], say: Callable[[str], None]) -> list[Contestant]:
    """All paths that serve here, int8 ones in the first of `dtypes` they know; the others, and why, are told."""
    if "bfloat16" in dtypes and not cpu_has_bf16():
        say("bfloat16 is left out: this processor has no products of it")
        dtypes = [dtype for dtype in dtypes if dtype != "bfloat16"]
    found, left_out = dict[str, Contestant](), dict[str, str]()
    for path in PATHS:
        for dtype, weights in [pair for one in dtypes for pair in ((one, one), (one, "int8"))]:
            one = Contestant(path, dtype, weights)
            place = Place(torch.device("cpu"), getattr(torch, dtype), "int8" if weights == "int8" else "none")
            missing = path.lacks(place)
            if not missing:
                found.setdefault(one.name, one)
            elif "quantise" not in missing:
                left_out.setdefault(one.name, missing)
    for name, missing in left_out.items():
        if name not in found:
            say(f"{name} is left out: {missing}")
    if not found:
        raise ConfigError("no path of a linear layer serves this machine in the element types asked for; try --dtype")
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """What one shape at one number of rows took: seconds a call by the contestant's name."""

    shape: Shape
    rows: int
    seconds: Mapping[str, Measurement]


class Rotation:
    """One contestant's layers of one shape, all with the same weight, in turns."""

    def __init__(self, contestant: Contestant, weight: Tensor, rotation_bytes: int, shape: Shape) -> None:
        self._dtype: torch.dtype = getattr(torch, contestant.dtype)
        size = contestant.weight_bytes(shape)
        self._layers = [
            contestant.path(weight.to(self._dtype, copy=True), None) for _ in range(max(1, rotation_bytes // size))
        ]
        self._next = 0

    def caller(self, x: Tensor, calls: int) -> Callable[[], None]:
        """An action: `calls` calls, each of the layer whose turn it is."""
        own = x.to(self._dtype)

        def call() -> None:
            for _ in range(calls):
                self._layers[self._next](own)
                self._next = (self._next + 1) % len(self._layers)

        return call

    def __len__(self) -> int:
        return len(self._layers)


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to measure: rounds, bytes that rotate, and one of `CLOCKS`."""

    rounds: int = 5
    rotation_bytes: int = ROTATION
    clock: str = "wall"


@torch.inference_mode()
def read(
    shape: Shape, rows: Iterable[int], field: Sequence[Contestant], effort: Effort, say: Callable[[str], None]
) -> list[Reading]:
    """Measure all of `field` in turns. Holds their copies at once: `effort.rotation_bytes` each, or one weight."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape.num_out, shape.num_in, generator=generator) * 0.02
    rotations = {one.name: Rotation(one, weight, effort.rotation_bytes, shape) for one in field}
    readings = []
    for num in rows:
        say(f"{shape.model} {shape.layer}, {num} rows")
        x = torch.randn(num, shape.num_in, generator=generator)
        calls = {name: _enough_calls(rotation, x, effort) for name, rotation in rotations.items()}
        actions = {name: rotation.caller(x, calls[name]) for name, rotation in rotations.items()}
        sweeps = alternate(actions, effort.rounds, clock=effort.clock)
        readings.append(Reading(shape, num, {name: sweep.each(calls[name]) for name, sweep in sweeps.items()}))
    return readings


def _enough_calls(rotation: Rotation, x: Tensor, effort: Effort) -> int:
    """A sweep over all copies, or several where that is too short to be timed; it warms up as well."""
    once = alternate({"sweep": rotation.caller(x, len(rotation))}, 1, clock=effort.clock)["sweep"].median
    return len(rotation) * max(1, min(100, round(_LEAST_SWEEP_S / max(once, 1e-6))))


def linear_tables(
    readings: Sequence[Reading], field: Sequence[Contestant], peaks: Peaks, effort: Effort
) -> list[Table]:
    """Microseconds a call, share of the floor, and the rate that goes with it, a path a column."""
    times = _table("Linear layers: microseconds a call", field, ".0f")
    shares = _table("Linear layers: share of the floor", field, ".0%")
    read_rates = _table("Linear layers: GB/s of weights", field, ".1f")
    rates = _table("Linear layers: Gop/s", field, ".0f")
    for one in readings:
        lead = (one.shape.model, one.shape.layer, f"{one.shape.num_in} x {one.shape.num_out}", one.rows)
        medians = {contestant: one.seconds[contestant.name].median for contestant in field}
        best = min(field, key=lambda contestant: medians[contestant])
        ops = 2 * one.rows * one.shape.num_in * one.shape.num_out
        times.add(*lead, *(seconds * 1e6 for seconds in medians.values()), best.name)
        floors = {contestant: floor_s(contestant, one.shape, one.rows, peaks) for contestant in field}
        shares.add(*lead, *(floors[who] / seconds for who, seconds in medians.items()), best.name)
        read_rates.add(
            *lead, *(who.weight_bytes(one.shape) / seconds / 1e9 for who, seconds in medians.items()), best.name
        )
        rates.add(*lead, *(ops / seconds / 1e9 for seconds in medians.values()), best.name)
    spread = statistics.median(seconds.spread for one in readings for seconds in one.seconds.values())
    int8 = sorted({contestant.dtype for contestant in field if contestant.weights == "int8"})
    times.notes += [
        f"Medians of {effort.rounds} rounds, paths in turns, {effort.clock} time; median spread {spread:.0%}.",
        f"Copies of the weight, {effort.rotation_bytes >> 20} MiB of them a path, take turns: it comes from memory.",
    ]
    if int8:
        times.notes.append(f"int8 paths take and give {' or '.join(int8)} and quantise their inputs in the time shown.")
    shares.notes += [
        "Floor: the weight read once at the peak of reading, or all products at the peak of the weights' element type,",
        "whichever takes longer, at the peaks below.",
    ]
    return [times, shares, read_rates, rates]


def floor_s(contestant: Contestant, shape: Shape, rows: int, peaks: Peaks) -> float:
    """The least seconds of one call."""
    ops = 2 * rows * shape.num_in * shape.num_out
    return max(contestant.weight_bytes(shape) / peaks.read_bytes, ops / peaks.rate(contestant.weights))


def _table(title: str, field: Sequence[Contestant], spec: str) -> Table:
    lead = (Column("model", "model"), Column("layer", "layer"), Column("shape", "in x out"), Column("rows", "rows"))
    return Table(title, (*lead, *(Column(one.name, one.name, spec) for one in field), Column("best", "fastest")))
