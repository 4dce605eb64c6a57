"""Plots: a curve where it says more than a table. Needs matplotlib, the extra `bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from paged_core.bench.report import Table


def new_figure(inches: tuple[float, float] = (7, 4)) -> Figure:
    """An empty figure. ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plots need matplotlib: pip install "paged-core[bench]"') from error
    return Figure(figsize=inches, layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write it in the format of the file's ending. ConfigError for one that matplotlib does not know."""
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def check_plot(path: Path) -> None:
    """ConfigError when `save` could not write to `path`: to be asked before hours of measuring."""
    endings = new_figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in endings:
        raise ConfigError(f"{path}: plots are written as {', '.join(sorted(endings))}, by the file's ending")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no such folder")


def plot(table: Table, x: str, y: str, path: Path) -> None:
    """Column `y` over column `x` (keys), the latter on a logarithmic axis; the file's ending chooses the format.

    ConfigError without matplotlib, or for an ending that it does not know.
    """
    columns = {column.key: i for i, column in enumerate(table.columns)}
    figure = new_figure()
    axes = figure.add_subplot(
        title=table.title, xlabel=table.columns[columns[x]].head, ylabel=table.columns[columns[y]].head
    )
    points = [(row[columns[x]], row[columns[y]]) for row in table.rows]
    axes.plot([float(at or 0) for at, _ in points], [float(value or 0) for _, value in points], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    save(figure, path)
