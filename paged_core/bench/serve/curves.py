"""Curves of a sweep: latency, first tokens, tokens and throughput over the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.bench.plot import new_figure, save

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paged_core.bench.serve.figures import Quantiles, Summary

    Curve = Callable[[Summary], float | None]


def _time(what: str, quantile: Callable[[Quantiles], float], scale: float = 1000) -> Curve:
    def value(summary: Summary) -> float | None:
        found = summary.times[what]
        return None if found is None else scale * quantile(found)

    return value


def _panels() -> dict[str, dict[str, Curve]]:
    return {
        "normalized latency, s/token": {"mean": _time("normalized", lambda q: q.mean, 1)},
        "time to first token, ms": {
            "p50": _time("TTFT", lambda q: q.p50),
            "p99": _time("TTFT", lambda q: q.p99),
        },
        "time per output token, ms": {
            "p50": _time("TPOT", lambda q: q.p50),
            "p99": _time("TPOT", lambda q: q.p99),
        },
        "requests/s": {
            "answered": lambda s: s.per_second(s.num_ok),
            "within the SLO": lambda s: None if s.num_good is None else s.per_second(s.num_good),
        },
    }


def draw(summaries: Sequence[Summary], title: str, path: Path) -> None:
    """Four panels over the rate; the file's ending chooses the format. Infinite rates have no place on the axis.

    ConfigError without matplotlib, or for an ending that it does not know.
    """
    figure = new_figure((9, 6.5))
    figure.suptitle(title, fontsize="medium")
    shown = sorted((one for one in summaries if np.isfinite(one.rate)), key=lambda one: one.rate)
    for number, (label, curves) in enumerate(_panels().items(), start=1):
        axes = figure.add_subplot(2, 2, number, xlabel="request rate, 1/s", ylabel=label)
        for name, curve in curves.items():
            points = [(one.rate, value) for one in shown if (value := curve(one)) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    save(figure, path)
