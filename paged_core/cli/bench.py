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

_BENCH = "Benchmark"
_PARTS = ("lengths", "prompts", "prefix")
_SHARING_HELP = """What sharing of KV blocks saves and gains, next to the figures of the PagedAttention paper.

lengths: memory saved by n samples per prompt, under the paper's length distributions, rates and pool, without a model.
prompts: memory saved by samples and beams that a real model grows over real prompts. prefix: throughput of translation
behind a shared prefix, prefix cache on and off.
"""


def _sharing(parameters: Mapping[str, Any]) -> None:
    parts = parameters["part"] or _PARTS
    data = _data(parameters)
    from paged_core.bench import Report, conditions, sharing

    size = sharing.QUICK if parameters["quick"] else sharing.Size(seed=parameters["seed"])
    settings = {"kv_memory": "1GiB"} | engine_flags(parameters)
    report = Report("bench sharing", conditions(seed=size.seed, data=data.source))
    if "lengths" in parts:
        report.tables.append(sharing.lengths_table(data.lengths, size, note))
    if "prompts" in parts:
        report.tables.append(sharing.prompts_table(data, settings, size, note))
    if "prefix" in parts:
        report.tables.append(sharing.prefix_table(data, settings, size, note))
    _publish(report, parameters)


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


def _options(*own: click.Option) -> list[click.Option]:
    return [
        *own,
        Option(
            ["--quick"], section=_BENCH, is_flag=True, help="A minute at most; see it run, do not quote its numbers."
        ),
        Option(["--json"], section=_BENCH, metavar="FILE", help="Write tables and conditions as JSON."),
    ]


_PART = Option(
    ["--part"],
    section=_BENCH,
    multiple=True,
    type=click.Choice(_PARTS),
    help="Only this part. Repeatable. Default: all.",
)
_DATA = Option(
    ["--data"], section=_BENCH, metavar="DIR", help="Folder of prompts and lengths; docs/cli.md lists its files."
)
_SEED = Option(
    ["--seed"], section=_BENCH, type=click.INT, default=0, help="Seed of lengths, arrivals and draws. Default: 0."
)

bench_command = click.Group(
    "bench",
    commands=[
        Command("sharing", _sharing, [*_options(_PART, _DATA, _SEED), *engine_options()], _SHARING_HELP),
    ],
    help="Measure on this machine, next to published figures or to the floors of its own peaks.",
)
