"""Plots of a comparison: latency over the rate, and where memory is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.bench.plot import new_figure, save
from paged_core.sim.capacity import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from paged_core.sim.measures import Measures
    from paged_core.sim.sweep import Point

    Curve = Callable[[Measures], float | None]

_PARTS = (("token", "#2a6f97"), ("reserved", "#8ecae6"), ("internal", "#f4a261"), ("rest", "#e5e5e5"))
_LABELS = {"token": "tokens", "reserved": "reserved", "internal": "never used", "rest": "free, external"}


def draw(points: Sequence[Point], title: str, path: Path, limit_s: float = LIMIT_S) -> None:
    """Four panels, a colour a system: normalized latency, TTFT and TPOT over the rate, and the split of memory.

    The file's ending chooses the format. With a single rate the systems stand beside each other instead.
    ConfigError without matplotlib, or for an ending that it does not know.
    """
    figure = new_figure((11, 8))
    figure.suptitle(title, fontsize="medium")
    shown = [point for point in points if np.isfinite(point.rate)] or list(points)
    panels = (
        ("normalized latency, s/token", {"mean": _time("normalized", "mean")}),
        ("time to first token, s", {"p50": _time("ttft", "p50"), "p99": _time("ttft", "p99")}),
        ("time per output token, s", {"p50": _time("tpot", "p50"), "p99": _time("tpot", "p99")}),
    )
    several = len({point.rate for point in shown}) > 1
    for number, (label, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(2, 2, number, ylabel=label, yscale="log")
        (_curves if several else _bars)(axes, shown, curves)
        if number == 1:
            axes.axhline(limit_s, color="0.5", linestyle="--", linewidth=1)
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend(fontsize="small")
    _split(figure.add_subplot(2, 2, 4), shown)
    save(figure, path)


def _time(what: str, quantile: str) -> Curve:
    def value(measures: Measures) -> float | None:
        found = getattr(measures, what)
        return None if found is None else float(getattr(found, quantile))

    return value


def _names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.name for point in points))


def _curves(axes: Any, points: Sequence[Point], curves: Mapping[str, Curve]) -> None:
    """A line a system and curve; the second curve of a system is dashed."""
    axes.set_xlabel("request rate, 1/s")
    for i, name in enumerate(_names(points)):
        for style, (what, value) in zip(("-", ":"), curves.items(), strict=False):
            found = [(point.rate, value(point.measures)) for point in points if point.name == name]
            mine = sorted((rate, time) for rate, time in found if time is not None)
            label = name if len(curves) == 1 else f"{name}, {what}"
            axes.plot(
                [at for at, _ in mine],
                [time for _, time in mine],
                style,
                marker="o",
                markersize=3,
                color=f"C{i}",
                label=label,
            )


def _bars(axes: Any, points: Sequence[Point], curves: Mapping[str, Curve]) -> None:
    """A group of bars a system."""
    width = 0.8 / len(curves)
    for i, (what, value) in enumerate(curves.items()):
        at = np.arange(len(points)) + (i - (len(curves) - 1) / 2) * width
        axes.bar(at, [value(point.measures) or np.nan for point in points], width, label=what)
    axes.set_xticks(range(len(points)), [point.name for point in points], rotation=20, ha="right")


def _split(axes: Any, points: Sequence[Point]) -> None:
    """A stacked bar a system at the highest rate that all have; of one system, a bar a rate."""
    names = _names(points)
    common = set.intersection(*({point.rate for point in points if point.name == name} for name in names))
    if len(names) > 1 and common:
        chosen = [point for point in points if point.rate == max(common)]
        labels, what = [point.name for point in chosen], f"at {max(common):.4g} requests/s"
    else:
        chosen, what = list(points), "by rate"
        labels = [f"{point.rate:.4g}" for point in chosen]
    base = np.zeros(len(chosen))
    for part, color in _PARTS:
        share = 100 * np.array([getattr(point.measures.memory, part) for point in chosen])
        axes.bar(range(len(chosen)), share, bottom=base, color=color, label=_LABELS[part])
        for at, (size, low) in enumerate(zip(share, base, strict=True)):
            if size >= 4:
                axes.text(at, low + size / 2, f"{size:.0f}", ha="center", va="center", fontsize="small")
        base += share
    axes.set(ylabel=f"KV memory, %, {what}", ylim=(0, 100))
    axes.set_xticks(range(len(chosen)), labels, rotation=20, ha="right")
    axes.legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
