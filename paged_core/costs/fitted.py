"""Fitted: coefficients that `paged-core calibrate` measured on a machine, by least squares, in a file it wrote.

A step's seconds are a sum of what it does, each times a coefficient that is not negative:

    1                 what every step costs
    tokens up to 4, from 4 to 16, ...   matrices: a slope of its own for each range, as kernels change with the rows
    draws             the head and the sampler
    context           tokens that decodes attend to
    squares           of prompt lengths (`StepWork.prefill_squares`), for the attention of prompts

The fit weighs relative errors, so that short steps count as much as long ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.api.model import ModelSpec, MoeSpec, RopeSpec
from paged_core.costs.devices import Device
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from paged_core.costs.work import StepWork

FORMAT = "paged-core costs 1"
EDGES = (4, 16, 64, 256)
"""Tokens of a step at which the slope may change."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Seconds a unit. `tokens` has one slope more than `edges`. `source`: what was measured, and where."""

    step: float
    edges: tuple[int, ...]
    tokens: tuple[float, ...]
    draw: float
    context: float
    square: float
    source: str = ""

    def step_s(self, work: StepWork) -> float:
        """Seconds."""
        total, before, tokens = self.step, 0, work.num_tokens
        for edge, slope in zip((*self.edges, tokens), self.tokens, strict=True):
            total += slope * max(0, min(tokens, edge) - before)
            before = edge
        return (
            total + self.draw * work.num_draws + self.context * work.decode_context + self.square * work.prefill_squares
        )

    def describe(self) -> str:
        """Where the numbers are from."""
        return f"measured: {self.source}"


@dataclass(frozen=True, slots=True)
class Error:
    """How far predictions are off: `r2` is the share of the variance explained, the others are relative errors."""

    steps: int
    r2: float
    median: float
    p90: float
    worst: float

    def __str__(self) -> str:
        return (
            f"{self.steps} kinds of steps, R^2 {self.r2:.4f}, relative error {self.median:.1%} at the median, "
            f"{self.p90:.1%} at the 90th percentile, {self.worst:.1%} at worst"
        )


def fit(works: Sequence[StepWork], seconds: Sequence[float], source: str = "") -> Fitted:
    """The coefficients that explain measured steps best. ConfigError with fewer kinds of steps than coefficients."""
    import numpy as np

    edges = tuple(edge for edge in EDGES if any(work.num_tokens > edge for work in works))
    rows = np.array([_features(work, edges) for work in works], dtype=np.float64)
    if len(np.unique(rows, axis=0)) < rows.shape[1]:
        raise ConfigError(f"{len(works)} steps do not determine {rows.shape[1]} coefficients: measure more kinds")
    took = np.array(seconds, dtype=np.float64)
    found = _non_negative(rows / took[:, None], np.ones(len(took)))
    step, *tokens = found[: len(edges) + 2].tolist()
    draw, context, square = found[len(edges) + 2 :].tolist()
    return Fitted(step, edges, tuple(tokens), draw, context, square, source)


def error(model: Fitted, works: Sequence[StepWork], seconds: Sequence[float]) -> Error:
    """How far the model is off on steps that it was not fitted to (or that it was)."""
    import numpy as np

    took = np.array(seconds, dtype=np.float64)
    predicted = np.array([model.step_s(work) for work in works])
    relative = np.abs(predicted - took) / took
    spread = float(((took - took.mean()) ** 2).sum())
    r2 = 1 - float(((predicted - took) ** 2).sum()) / spread if spread else 1.0
    median, p90 = np.quantile(relative, [0.5, 0.9]).tolist()
    return Error(len(took), r2, median, p90, float(relative.max()))


def _features(work: StepWork, edges: tuple[int, ...]) -> list[float]:
    """What each coefficient is multiplied with, in the order of the fields."""
    begins, tokens = (0, *edges), work.num_tokens
    ranges = [max(0, min(tokens, end) - begin) for begin, end in zip(begins, (*edges, tokens), strict=True)]
    return [1.0, *ranges, work.num_draws, work.decode_context, work.prefill_squares]


def _non_negative(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative coefficients: the most negative one leaves until none is."""
    import numpy as np

    scale = np.abs(rows).max(axis=0)
    kept = np.flatnonzero(scale > 0)
    found = np.zeros(rows.shape[1])
    while len(kept):
        part = np.linalg.lstsq(rows[:, kept] / scale[kept], wanted, rcond=None)[0]
        if (part >= 0).all():
            found[kept] = part / scale[kept]
            break
        kept = np.delete(kept, int(part.argmin()))
    return found


# -- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `paged-core calibrate` knows: a model's shape, the machine as a device, coefficients and their errors."""

    model: str
    spec: ModelSpec
    device: Device
    fitted: Fitted
    fit_error: Error
    held_out: Error
    conditions: Mapping[str, str]

    def write(self, path: Path) -> None:
        """As JSON."""
        content = {"format": FORMAT, **asdict(self)}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_calibration(path: str | Path) -> Calibration:
    """What `write` wrote. ConfigError for a file that cannot be read or is no such file."""
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ConfigError(f"{path} has the format {content['format']!r}; this version reads {FORMAT!r}")
        return Calibration(
            model=str(content["model"]),
            spec=_spec(content["spec"]),
            device=Device(**content["device"]),
            fitted=Fitted(**_tuples(content["fitted"])),
            fit_error=Error(**content["fit_error"]),
            held_out=Error(**content["held_out"]),
            conditions=dict(content["conditions"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} is no file of `paged-core calibrate`: {problem!r}") from problem


def _spec(content: dict[str, Any]) -> ModelSpec:
    values = _tuples(content)
    values["ropes"] = tuple(RopeSpec(**_tuples(rope)) for rope in content["ropes"])
    values["moe"] = None if content["moe"] is None else MoeSpec(**content["moe"])
    return ModelSpec(**{field.name: values[field.name] for field in fields(ModelSpec) if field.name in values})


def _tuples(content: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
