"""`paged-core pull MODEL`: make a model's files local."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command
from paged_core.cli.options import engine_flags, engine_options
from paged_core.cli.report import note
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

HELP = """Obtain MODEL: a registry name (smollm2-135m) or a Hub id. Prints the path of its files.

Does nothing when they are there already.
"""


def pull(parameters: Mapping[str, Any]) -> None:
    """Pull and print where the files are."""
    from paged_core.engine.assemble import find_loader
    from paged_core.plugins import bootstrap

    settings = Settings.load(**engine_flags(parameters))
    _, loader = find_loader(settings, bootstrap(settings))
    click.echo(loader.pull(note))


_NOT_LOADER = frozenset(Settings.model_fields) - {"loader", "disable_plugins", "plugin_autoload"}
pull_command = Command("pull", pull, [click.Argument(["model"]), *engine_options(without=_NOT_LOADER)], HELP)
