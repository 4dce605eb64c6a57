"""Found: what the runs of a reproduction measured, as they are kept in a file beside the document."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.errors import ConfigError
from paged_core.sim.capacity import LIMIT_S, capacity
from paged_core.sim.reproduce.measure import Measured
from paged_core.sim.reproduce.tasks import At, Curve, Size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from paged_core.sim.reproduce.setup import Setup


@dataclass(frozen=True, slots=True)
class Found:
    """`runs`: measurements by the key of their task. `only`: the claims they are for, in order."""

    size: Size
    only: tuple[str, ...]
    runs: Mapping[str, Sequence[Measured]]

    def at(self, setup: Setup, rate: float, *, drain: bool = False) -> Measured:
        """The mean of the runs of `setup` at `rate`. KeyError when it was not asked for."""
        return mean(self.runs[At(setup, rate, drain).key])

    def curve(self, setup: Setup) -> Sequence[Measured]:
        """The points of `setup`'s curve. KeyError when it was not asked for."""
        return self.runs[Curve(setup, 0).key]

    def capacity(self, setup: Setup, limit: float = LIMIT_S) -> float:
        """The rate that `setup` serves below `limit`; not a number when its curve does not pass it."""
        found = capacity(((one.rate, one.normalized_latency) for one in self.curve(setup)), limit)
        return math.nan if found.bound else found.rate

    def ratio(self, setup: Setup, other: Setup, limit: float = LIMIT_S) -> float:
        """How many times the rate of `other` `setup` serves."""
        return self.capacity(setup, limit) / self.capacity(other, limit)

    def write(self, path: Path) -> None:
        """As JSON, which `read` reads."""
        runs = {key: [one.as_json() for one in found] for key, found in sorted(self.runs.items())}
        lines = [f"  {json.dumps(key)}: {json.dumps(points)}" for key, points in runs.items()]
        head = json.dumps({"size": asdict(self.size), "only": self.only})[1:-1]
        path.write_text("{" + head + ', "runs": {\n' + ",\n".join(lines) + "\n}}\n")

    @classmethod
    def read(cls, path: Path) -> Found:
        """ConfigError when the file cannot be read or was not written by `write`."""
        try:
            written = json.loads(path.read_text())
            runs = {key: [Measured.from_json(one) for one in found] for key, found in written["runs"].items()}
            return cls(Size(**written["size"]), tuple(written["only"]), runs)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} holds no results of `paged-core reproduce`: {error!r}") from error


def mean(runs: Sequence[Measured]) -> Measured:
    """Every number averaged over traces."""
    names = [one.name for one in fields(Measured)]
    means: dict[str, Any] = {name: float(np.mean([getattr(run, name) for run in runs])) for name in names}
    return Measured(**means)
