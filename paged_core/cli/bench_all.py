"""`paged-core bench all`: every benchmark after the other, one JSON file each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.bench_options import BENCH, data_option
from paged_core.cli.command import Command, Option
from paged_core.cli.report import note
from paged_core.errors import PagedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HELP = """Every benchmark that needs nothing but this program, one after the other: tables to standard output, and a
JSON file each into a folder.

Without --data, those that need real text are left out (--quick has a sample for them).
"""
_SOME_FAILED = 1


def all_command(commands: Sequence[click.Command]) -> Command:
    """Runs `commands`, with those of its own options that each of them knows."""

    def run(parameters: Mapping[str, Any]) -> int:
        folder = Path(parameters["output"])
        folder.mkdir(parents=True, exist_ok=True)
        failed: list[str] = []
        for command in commands:
            assert command.name is not None
            if command.name in parameters["skip"]:
                continue
            arguments = _arguments(command, parameters)
            if arguments is None:
                note(f"bench {command.name} is left out: it needs --data")
                continue
            note(f"bench {' '.join([command.name, *arguments])}")
            begin = time.monotonic()
            try:
                command.main([*arguments, "--json", str(folder / f"{command.name}.json")], standalone_mode=False)
            except PagedError as error:
                note(f"bench {command.name} failed: {error}")
                failed.append(command.name)
            note(f"bench {command.name}: {time.monotonic() - begin:.0f} s")
        if failed:
            note(f"failed: {', '.join(failed)}; the others are in {folder}")
        return _SOME_FAILED if failed else 0

    names = [command.name for command in commands if command.name is not None]
    return Command("all", run, _options(names), _HELP)


def _arguments(command: click.Command, parameters: Mapping[str, Any]) -> list[str] | None:
    """What to say to `command`; None when it needs data and there is none."""
    known = {flag for parameter in command.params for flag in parameter.opts}
    if "--data" in known and parameters["data"] is None and not parameters["quick"]:
        return None
    said = ["--quick"] if parameters["quick"] else []
    for name in ("data", "threads", "rounds", "clock"):
        if f"--{name}" in known and parameters[name] is not None:
            said += [f"--{name}", str(parameters[name])]
    return said


def _options(names: Sequence[str]) -> list[click.Option]:
    return [
        Option(
            ["--output"],
            section=BENCH,
            metavar="DIR",
            default="bench",
            help="Folder of the JSON files; created. Default: bench.",
        ),
        data_option("Prompts, lengths, texts; as for `bench sharing` and `bench quality`."),
        Option(["--skip"], section=BENCH, multiple=True, type=click.Choice(names), help="Leave out. Repeatable."),
        Option(["--threads"], section=BENCH, type=click.IntRange(1), help="Compute threads, for all that compute."),
        Option(
            ["--rounds"], section=BENCH, type=click.IntRange(1), help="Measured rounds; unset takes each one's default."
        ),
        Option(
            ["--clock"],
            section=BENCH,
            type=click.Choice(["wall", "cpu"]),
            help="For those that know one. Default: wall.",
        ),
        Option(["--quick"], section=BENCH, is_flag=True, help="See all of it run; do not quote its numbers."),
    ]
