"""Plots: a curve where it says more than a table. Needs matplotlib, the extra `bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from paged_core.bench.report import Table


def plot(table: Table, x: str, y: str, path: Path) -> None:
    """Column `y` over column `x` (keys), the latter on a logarithmic axis; the file's ending chooses the format.

    ConfigError without matplotlib, or for an ending that it does not know.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plots need matplotlib: pip install "paged-core[bench]"') from error
    columns = {column.key: i for i, column in enumerate(table.columns)}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(
        title=table.title, xlabel=table.columns[columns[x]].head, ylabel=table.columns[columns[y]].head
    )
    points = [(row[columns[x]], row[columns[y]]) for row in table.rows]
    axes.plot([float(at or 0) for at, _ in points], [float(value or 0) for _, value in points], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
