"""Plots of a comparison: latency over the rate, and where memory is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.bench.plot import new_figure, save
from paged_core.sim.capacity import LIMIT_S
from paged_core.sim.tables import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from paged_core.sim.measures import Measures
    from paged_core.sim.sweep import Point

    Curve = Callable[[Measures], float | None]
    Panel = tuple[str, bool, Mapping[str, Curve]]

# A part of memory, what the legend calls it, its colour, and that of the number on it
_PARTS = (
    ("token", "tokens", "#2a6f97", "white"),
    ("reserved", "reserved", "#8ecae6", "black"),
    ("internal", "never used", "#f4a261", "black"),
    ("rest", "free, external", "#e5e5e5", "black"),
)


def draw(points: Sequence[Point], title: str, path: Path, limit_s: float = LIMIT_S) -> None:
    """Six panels, a colour a system: normalized latency, TTFT, TPOT, the share of requests within the SLO (without one:
    requests that end in a second) and running requests over the rate; and the split of memory.

    The file's ending chooses the format. With a single rate the systems stand beside each other instead.
    ConfigError without matplotlib, or for an ending that it does not know.
    """
    figure = new_figure((15, 8))
    figure.suptitle(title, fontsize="medium")
    shown = [point for point in points if np.isfinite(point.rate)] or list(points)
    several = len({point.rate for point in shown}) > 1
    slo = any(point.measures.num_good is not None for point in shown)
    for number, (label, explodes, curves) in enumerate(_panels(slo), start=1):
        axes = figure.add_subplot(2, 3, number, ylabel=label)
        known = {name: value for name, value in curves.items() if any(value(point.measures) for point in shown)}
        (_curves if several else _bars)(axes, shown, known)
        if number == 1:
            axes.axhline(limit_s, color="0.5", linestyle="--", linewidth=1)
        # What explodes where a system saturates needs decades; but a single bar shows its size only from zero
        if explodes and known and (several or len(known) > 1):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(visible=True, which="both", alpha=0.2)
    _split(figure.add_subplot(2, 3, 6), shown)
    if several:
        _legend(figure, _names(shown))
    save(figure, path)


def _panels(slo: bool) -> tuple[Panel, ...]:
    good: Panel = ("requests within the SLO, %", False, {"mean": lambda of: 100 * (of.good_share or 0.0)})
    return (
        ("normalized latency, s/token", True, {"mean": _time("normalized", "mean")}),
        ("time to first token, s", True, {"p50": _time("ttft", "p50"), "p99": _time("ttft", "p99")}),
        ("time per output token, s", False, {"p50": _time("tpot", "p50"), "p99": _time("tpot", "p99")}),
        good if slo else ("requests that end, 1/s", False, {"mean": lambda of: of.requests_per_s}),
        ("running requests", False, {"mean": lambda of: of.batch}),
    )


def _time(what: str, which: str) -> Curve:
    return lambda measures: quantile(getattr(measures, what), which)


def _names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.name for point in points))


def _curves(axes: Any, points: Sequence[Point], curves: Mapping[str, Curve]) -> None:
    """A line a system and curve; the second curve of a system is dotted."""
    axes.set_xlabel("request rate, 1/s")
    for i, name in enumerate(_names(points)):
        for style, value in zip(("-", ":"), curves.values(), strict=False):
            found = [(point.rate, value(point.measures)) for point in points if point.name == name]
            mine = sorted((rate, time) for rate, time in found if time is not None)
            axes.plot(
                [at for at, _ in mine], [time for _, time in mine], style, marker="o", markersize=3, color=f"C{i}"
            )
    if len(curves) > 1:
        axes.set_ylabel(f"{axes.get_ylabel()}: {' and dotted '.join(curves)}")


def _legend(figure: Figure, names: Sequence[str]) -> None:
    """The systems' colours, below all panels."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=f"C{i}", marker="o", markersize=3, label=name) for i, name in enumerate(names)]
    figure.legend(handles=lines, loc="outside lower center", ncols=min(4, len(names)), fontsize="small")


def _bars(axes: Any, points: Sequence[Point], curves: Mapping[str, Curve]) -> None:
    """A group of bars a system."""
    width = 0.8 / max(1, len(curves))
    for i, (what, value) in enumerate(curves.items()):
        at = np.arange(len(points)) + (i - (len(curves) - 1) / 2) * width
        axes.bar(at, [value(point.measures) or np.nan for point in points], width, label=what)
    _stand(axes, [point.name for point in points])
    if len(curves) > 1:
        axes.legend(fontsize="small")


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
    for part, label, color, ink in _PARTS:
        share = 100 * np.array([getattr(point.measures.memory, part) for point in chosen])
        axes.bar(range(len(chosen)), share, bottom=base, color=color, label=label)
        for at, (size, low) in enumerate(zip(share, base, strict=True)):
            if size >= 4:
                axes.text(at, low + size / 2, f"{size:.0f}", ha="center", va="center", fontsize="small", color=ink)
        base += share
    axes.set(ylabel=f"KV memory, %, {what}", ylim=(0, 100))
    _stand(axes, labels)
    axes.legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _stand(axes: Any, labels: Sequence[str]) -> None:
    """Labels below the bars, slanted where they would touch."""
    slanted = sum(map(len, labels)) > 50
    axes.set_xticks(range(len(labels)), labels, rotation=20 if slanted else 0, ha="right" if slanted else "center")
