"""What the benchmarks' commands have in common: options, and where their reports go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.bench.shapes import PREFIX
from paged_core.cli.command import Command, Option
from paged_core.cli.options import engine_flags
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.bench.report import Report
    from paged_core.cli.command import Action

BENCH = "Benchmark"
_SHAPES = "paged_core.bench.shapes"


def model_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's settings that were given; a KV pool of modest size unless a GPU's is asked for, which is its own.

    A model that is a mere shape brings its loader.
    """
    given = engine_flags(parameters)
    if given.get("device") != "cuda":
        given = {"kv_memory": "1GiB"} | given
    return with_shapes(given)


def with_shapes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with the loader of random weights where the model's name asks for it."""
    modules = settings.get("plugin_modules", ())
    if not str(settings.get("model", "")).startswith(PREFIX) or _SHAPES in modules:
        return dict(settings)
    return {**settings, "plugin_modules": (*modules, _SHAPES)}


def num_rounds(parameters: Mapping[str, Any]) -> int:
    """One when it is to be quick."""
    return 1 if parameters["quick"] else int(parameters["rounds"])


def data_folder(parameters: Mapping[str, Any], files: Sequence[str]) -> Path | None:
    """The folder that was named; None for --quick without one. ConfigError names the `files` it must hold."""
    if parameters["data"] is not None:
        return Path(parameters["data"])
    if not parameters["quick"]:
        raise ConfigError(f"real text is needed: --data DIR with {', '.join(files)}; or try --quick, with a sample")
    return None


def output_file(name: str) -> Path:
    """The file of --output. ConfigError, before any work is done for it, where its folder is not there."""
    if not Path(name).absolute().parent.is_dir():
        raise ConfigError(f"--output {name}: there is no such folder")
    return Path(name)


def publish(report: Report, parameters: Mapping[str, Any]) -> None:
    """Tables to standard output, JSON to the file that was asked for."""
    from rich.console import Console

    console = Console()
    report.show(console if console.is_terminal else Console(width=160))
    if parameters["json"] is not None:
        report.write_json(Path(parameters["json"]))


def benchmark(name: str, action: Action, options: Sequence[click.Option], text: str) -> Command:
    """A benchmark: its own `options`, and those that all of them have."""
    quick = Option(
        ["--quick"], section=BENCH, is_flag=True, help="A minute at most; see it run, do not quote its numbers."
    )
    json = Option(["--json"], section=BENCH, metavar="FILE", help="Write tables and conditions as JSON.")
    own = [option for option in options if getattr(option, "section", BENCH) == BENCH]
    rest = [option for option in options if option not in own]
    return Command(name, action, [*own, quick, json, *rest], text)


def seed_option(text: str = "Seed of whatever is drawn: lengths, prompts, arrivals. Default: 0.") -> click.Option:
    """--seed."""
    return Option(["--seed"], section=BENCH, type=click.INT, default=0, help=text)


def rounds_option(default: int = 5) -> click.Option:
    """--rounds."""
    text = f"Measured rounds. Default: {default}."
    return Option(["--rounds"], section=BENCH, type=click.IntRange(1), default=default, help=text)


def data_option(text: str = "Prompts and lengths; docs/cli.md lists the files.") -> click.Option:
    """--data."""
    return Option(["--data"], section=BENCH, metavar="DIR", help=text)


def clock_option(scope: str = "") -> click.Option:
    """--clock, of that part of a benchmark which `scope` names."""
    text = f"{scope}cpu time is for --threads 1 on a busy machine. Default: wall."
    return Option(["--clock"], section=BENCH, type=click.Choice(["wall", "cpu"]), default="wall", help=text)


def threads_option() -> click.Option:
    """--threads, for a benchmark without an engine."""
    text = "Compute threads; unset takes the library's default."
    return Option(["--threads"], section=BENCH, type=click.IntRange(1), help=text)


def plot_option() -> click.Option:
    """--plot."""
    return Option(["--plot"], section=BENCH, metavar="FILE", help="Draw the curve: .svg, .png or .pdf.")
