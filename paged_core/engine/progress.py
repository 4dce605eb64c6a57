"""The progress bar of offline generation, on stderr."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress_bar(total: int, done: int, *, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yields `advance(output_tokens)`, to be called once per finished request. Silent when not enabled."""
    if not enabled:
        yield lambda num_tokens: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=total, completed=done, rate="")
        tokens = 0

        def advance(num_tokens: int) -> None:
            nonlocal tokens
            tokens += num_tokens
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, advance=1, rate=f"{tokens / elapsed:,.0f} tokens/s" if elapsed > 0 else "")

        yield advance
