"""`paged-core bench startup`: from the start of a process to the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.cli.bench_options import benchmark, num_rounds, publish, rounds_option
from paged_core.cli.options import engine_flags, engine_options
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.cli.command import Command

_HELP = """What a person waits for before the first token, in fresh processes: with a warm and with an empty cache of
compiled kernels, by phase; and the time of `paged-core --help`.
"""
_MOST_COLD = 3


def _startup(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import Report, conditions, startup

    rounds = num_rounds(parameters)
    flags = engine_arguments(parameters)
    starts = startup.observe(flags, rounds, min(rounds, _MOST_COLD), note)
    tables = [startup.startup_table(starts), startup.phases_table(starts)]
    publish(Report("bench startup", conditions(options=" ".join(flags) or "none"), tables), parameters)


def engine_arguments(parameters: Mapping[str, Any]) -> list[str]:
    """The engine options that were given, as they are written on a command line."""
    found: list[str] = []
    for name, value in engine_flags(parameters).items():
        flag = name.replace("_", "-")
        if name == "plugin_modules":
            found += [word for module in value for word in ("--plugin", module)]
        elif isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            found += [f"--{flag}", str(value)]
    return found


def startup_command() -> Command:
    """`bench startup`."""
    return benchmark("startup", _startup, [rounds_option(), *engine_options()], _HELP)
