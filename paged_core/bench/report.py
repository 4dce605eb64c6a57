"""Report: what a benchmark found, with the conditions under which it did; JSON, or tables on a terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

Cell = str | int | float | None
"""None is shown as a dash: not measured, or not stated by whom we compare with."""


def verdict(value: float, goal: float | None) -> str | None:
    """Whether a goal is met. None when there is none."""
    return None if goal is None else "met" if value >= goal else "missed"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key in JSON, its head in the table and the format of its values (`.1%`, `,`, `.2f`)."""

    key: str
    head: str
    spec: str = ""

    def show(self, value: Cell) -> str:
        """A cell as text. Text stays as it is whatever the format."""
        if value is None:
            return "-"
        return value if isinstance(value, str) else format(value, self.spec)


@dataclass(slots=True)
class Table:
    """A title, columns, rows of one value a column, and notes that belong under it."""

    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """Append a row. ValueError when it has more or fewer cells than there are columns."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns of {self.title!r}")
        self.rows.append(cells)

    def as_json(self) -> dict[str, Any]:
        """Rows as objects, values unrounded."""
        keys = [column.key for column in self.columns]
        rows = [dict(zip(keys, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": self.notes}


@dataclass(slots=True)
class Report:
    """The tables of one command. `conditions` says everything a reader needs to judge or repeat them."""

    command: str
    conditions: Mapping[str, Any]
    tables: list[Table] = field(default_factory=list)

    def write_json(self, path: Path) -> None:
        """Everything as one JSON object."""
        tables = [table.as_json() for table in self.tables]
        content = {"command": self.command, "conditions": dict(self.conditions), "tables": tables}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def write_markdown(self, path: Path) -> None:
        """Tables with their notes, and the conditions under them."""
        parts = [
            part for table in self.tables for part in (f"**{table.title}**", markdown(table), " ".join(table.notes))
        ]
        path.write_text("\n\n".join([part for part in parts if part] + [self._conditions()]) + "\n")

    def show(self, console: Console) -> None:
        """Tables, notes and the conditions, on a console of rich."""
        for table in self.tables:
            console.print(table.title, style="bold", markup=False, highlight=False)
            console.print(_drawn(table))
            for note in table.notes:
                console.print(f"  {note}", style="dim", markup=False, highlight=False)
            console.print()
        console.print(self._conditions(), markup=False, highlight=False)

    def _conditions(self) -> str:
        return f"{self.command}: " + "; ".join(f"{name} {value}" for name, value in self.conditions.items())


def markdown(table: Table) -> str:
    """Head and rows as a table in Markdown, without title and notes."""
    rows = [[column.head for column in table.columns], ["---"] * len(table.columns)]
    rows += [[column.show(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _drawn(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(table.columns):
        numbers = any(isinstance(row[i], int | float) for row in table.rows)
        drawing.add_column(Text(column.head), justify="right" if numbers else "left")
    for row in table.rows:
        drawing.add_row(*(Text(column.show(cell)) for column, cell in zip(table.columns, row, strict=True)))
    return drawing
