"""`paged-core bench`: measure on this machine, next to the floors of its own peaks or to published figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command, Option
from paged_core.cli.options import engine_flags, engine_options
from paged_core.cli.report import note
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.bench.data import Data
    from paged_core.bench.report import Report
    from paged_core.cli.command import Action

_BENCH = "Benchmark"
_PARTS = ("lengths", "prompts", "prefix")
_SHARING_HELP = """What sharing of KV blocks saves and gains, next to the figures of the PagedAttention paper.

lengths: memory saved by n samples per prompt, under the paper's length distributions, rates and pool, without a model.
prompts: memory saved by samples and beams that a real model grows over real prompts. prefix: throughput of translation
behind a shared prefix, prefix cache on and off.
"""
_LATENCY_HELP = (
    """First token and decoding speed of one request alone, held against the floor of this machine's peaks."""
)
_THROUGHPUT_HELP = (
    """Output tokens a second of many requests at once, held against the floor of this machine's peaks."""
)
_ENGINE_HELP = """What the engine itself costs a step and a sequence, with a model that costs nothing."""


def _sharing(parameters: Mapping[str, Any]) -> None:
    parts = parameters["part"] or _PARTS
    data = _data(parameters)
    from paged_core.bench import Report, conditions, sharing

    size = sharing.QUICK if parameters["quick"] else sharing.Size(seed=parameters["seed"], clock=parameters["clock"])
    settings = _settings(parameters)
    threads = parameters["threads"] or "default"
    report = Report("bench sharing", conditions(threads=threads, seed=size.seed, data=data.source))
    if "lengths" in parts:
        report.tables.append(sharing.lengths_table(data.lengths, size, note))
    if "prompts" in parts:
        report.tables += sharing.prompts_tables(data, settings, size, note)
    if "prefix" in parts:
        report.tables.append(sharing.prefix_table(data, settings, size, note))
    _publish(report, parameters)


def _latency(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import speed

    lengths = (16,) if parameters["quick"] else (16, 128, 512, 2048)
    with speed.Bench(_settings(parameters), note) as bench:
        table = speed.latency_table(bench, lengths, _rounds(parameters), parameters["seed"])
        report = bench.report("bench latency", table, seed=parameters["seed"])
    _publish(report, parameters)


def _throughput(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import speed

    path, seed = parameters["workload"], parameters["seed"]
    given = None if path is None else speed.read_workload(Path(path))
    with speed.Bench(_settings(parameters), note) as bench:
        count = 4 if parameters["quick"] else 64
        workload = given or speed.mixed(count, bench.engine.facts.vocab_size, seed)
        table = speed.throughput_table(bench, workload, _rounds(parameters))
        report = bench.report("bench throughput", table, seed=seed)
    _publish(report, parameters)


def _engine(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import Report, conditions, overhead

    sizes = (1, 16) if parameters["quick"] else overhead.RUNNING
    table = overhead.overhead_table(sizes, _rounds(parameters), note)
    if parameters["plot"] is not None:
        from paged_core.bench.plot import plot

        plot(table, "running", "sequence_us", Path(parameters["plot"]))
    _publish(Report("bench engine", conditions(), [table]), parameters)


def _settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"kv_memory": "1GiB"} | engine_flags(parameters)


def _rounds(parameters: Mapping[str, Any]) -> int:
    return 1 if parameters["quick"] else int(parameters["rounds"])


def _data(parameters: Mapping[str, Any]) -> Data:
    from paged_core.bench.data import FILES, read_data, sample_data

    if parameters["data"] is not None:
        return read_data(Path(parameters["data"]))
    if not parameters["quick"]:
        raise ConfigError(f"real prompts are needed: --data DIR with {', '.join(FILES)}; or try --quick, with a sample")
    return sample_data()


def _publish(report: Report, parameters: Mapping[str, Any]) -> None:
    """Tables to standard output, JSON to the file that was asked for."""
    from rich.console import Console

    console = Console()
    report.show(console if console.is_terminal else Console(width=160))
    if parameters["json"] is not None:
        report.write_json(Path(parameters["json"]))


def _options() -> list[click.Option]:
    return [
        Option(
            ["--quick"], section=_BENCH, is_flag=True, help="A minute at most; see it run, do not quote its numbers."
        ),
        Option(["--json"], section=_BENCH, metavar="FILE", help="Write tables and conditions as JSON."),
    ]


def _command(name: str, action: Action, own: list[click.Option], text: str) -> Command:
    """A benchmark of a real model takes the engine's options as well."""
    engine = [] if name == "engine" else engine_options()
    return Command(name, action, [*own, *_options(), *engine], text)


def _seed() -> click.Option:
    text = "Seed of whatever is drawn: lengths, prompts, arrivals. Default: 0."
    return Option(["--seed"], section=_BENCH, type=click.INT, default=0, help=text)


def _rounds_option() -> click.Option:
    return Option(["--rounds"], section=_BENCH, type=click.IntRange(1), default=5, help="Measured rounds. Default: 5.")


_PART = Option(
    ["--part"], section=_BENCH, multiple=True, type=click.Choice(_PARTS), help="Only this. Repeatable. Default: all."
)
_DATA = Option(["--data"], section=_BENCH, metavar="DIR", help="Prompts and lengths; docs/cli.md lists the files.")
_CLOCK = Option(
    ["--clock"],
    section=_BENCH,
    type=click.Choice(["wall", "cpu"]),
    default="wall",
    help="Of prefix: cpu time is for --threads 1 on a busy machine. Default: wall.",
)
_WORKLOAD = Option(
    ["--workload"],
    section=_BENCH,
    metavar="FILE",
    help="Requests as JSON. Default: 64 with the lengths of a chat service.",
)
_PLOT = Option(["--plot"], section=_BENCH, metavar="FILE", help="Draw the curve: .svg, .png or .pdf.")

bench_command = click.Group(
    "bench",
    commands=[
        _command("sharing", _sharing, [_PART, _DATA, _CLOCK, _seed()], _SHARING_HELP),
        _command("latency", _latency, [_rounds_option(), _seed()], _LATENCY_HELP),
        _command("throughput", _throughput, [_WORKLOAD, _rounds_option(), _seed()], _THROUGHPUT_HELP),
        _command("engine", _engine, [_PLOT, _rounds_option()], _ENGINE_HELP),
    ],
    help="Measure on this machine, next to published figures or to the floors of its own peaks.",
)
