"""Command and Option: click's, with options in named sections and one action that takes all parameters at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Action = Callable[[Mapping[str, Any]], int | None]


class Option(click.Option):
    """An option that `--help` lists under `section`."""

    def __init__(self, declarations: Sequence[str], *, section: str, **attributes: Any) -> None:
        super().__init__(list(declarations), **attributes)
        self.section = section


class Command(click.Command):
    """A command that hands its parsed parameters, by name, to `action`, which may return an exit code."""

    def __init__(self, name: str, action: Action, params: Sequence[click.Parameter], help_text: str) -> None:
        super().__init__(name, params=list(params), help=help_text)
        self._action = action

    def invoke(self, ctx: click.Context) -> int | None:
        """Run the action. Warnings and news (a download, a first compilation) are told on stderr."""
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
        logging.getLogger("paged_core.news").setLevel(logging.INFO)
        return self._action(ctx.params)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one block of options a section, in the order of their first option."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the usage line shows it, the text explains it
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Above(click.FloatRange):
    """A number above a bound; `nan` compares with nothing and is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. click.BadParameter for others, as click has it."""
        number = super().convert(value, param, ctx)
        return self.fail(f"{value} is no number", param, ctx) if number != number else number
