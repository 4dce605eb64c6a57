"""`paged-core bench`: measure on this machine, next to the floors of its own peaks or to published figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.bench_all import all_command
from paged_core.cli.bench_kernels import kernels_command, linear_command
from paged_core.cli.bench_model import model_command
from paged_core.cli.bench_options import (
    BENCH,
    benchmark,
    clock_option,
    data_folder,
    data_option,
    model_settings,
    num_rounds,
    plot_option,
    publish,
    rounds_option,
    seed_option,
)
from paged_core.cli.bench_peers import peers_command
from paged_core.cli.bench_quality import quality_command
from paged_core.cli.bench_serve import serve_command
from paged_core.cli.bench_start import memory_command, startup_command
from paged_core.cli.bench_tp import tp_command
from paged_core.cli.command import Option
from paged_core.cli.options import engine_options
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.bench.data import Data

_PARTS = ("lengths", "waste", "prompts", "prefix")
_LENGTHS = (16, 128, 512, 1024, 2048, 8192)
_SHARING_HELP = """What sharing of KV blocks saves and gains, next to the figures of the PagedAttention paper.

lengths: memory saved by n samples per prompt, under the paper's length distributions, rates and pool, without a model.
waste: slots that stay empty in last blocks, under the same, by block size.
prompts: memory saved by samples and beams that a real model grows over real prompts. prefix: throughput of translation
behind a shared prefix, prefix cache on and off.
"""
_LATENCY_HELP = (
    """First token and decoding speed of one request alone, held against the floor of this machine's peaks."""
)
_THROUGHPUT_HELP = (
    """Output tokens a second of many requests at once, held against the floor of this machine's peaks."""
)
_PREEMPTION_HELP = (
    """What a preempted request costs by its length: its blocks to the host and back, or its tokens once more."""
)
_ENGINE_HELP = """What the engine itself costs a step and a sequence, with a model that costs nothing."""


def _sharing(parameters: Mapping[str, Any]) -> None:
    parts = parameters["part"] or _PARTS
    data = _data(parameters)
    from paged_core.bench import Report, conditions, sharing

    size = sharing.QUICK if parameters["quick"] else sharing.Size(seed=parameters["seed"], clock=parameters["clock"])
    settings = model_settings(parameters)
    threads = parameters["threads"] or "default"
    report = Report("bench sharing", conditions(threads=threads, seed=size.seed, data=data.source))
    if "lengths" in parts:
        report.tables.append(sharing.lengths_table(data.lengths, size, note))
    if "waste" in parts:
        from paged_core.bench.waste import waste_table

        report.tables.append(waste_table(data.lengths, size, note))
    if "prompts" in parts:
        report.tables += sharing.prompts_tables(data, settings, size, note)
    if "prefix" in parts:
        report.tables.append(sharing.prefix_table(data, settings, size, note))
    publish(report, parameters)


def _latency(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import speed

    lengths = parameters["prompt"] or ((16,) if parameters["quick"] else _LENGTHS)
    with speed.Bench(model_settings(parameters), note) as bench:
        table = speed.latency_table(bench, lengths, num_rounds(parameters), parameters["seed"])
        report = bench.report("bench latency", table, seed=parameters["seed"])
    publish(report, parameters)


def _throughput(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import speed

    path, seed = parameters["workload"], parameters["seed"]
    given = None if path is None else speed.read_workload(Path(path))
    with speed.Bench(model_settings(parameters), note) as bench:
        count = 4 if parameters["quick"] else 64
        workload = given or speed.mixed(count, bench.engine.facts.vocab_size, seed)
        table = speed.throughput_table(bench, workload, num_rounds(parameters))
        report = bench.report("bench throughput", table, seed=seed)
    publish(report, parameters)


def _preemption(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import preemption, speed

    lengths = preemption.LENGTHS[:2] if parameters["quick"] else preemption.LENGTHS
    with speed.Bench(model_settings(parameters), note) as bench:
        table = preemption.preemption_table(bench, lengths, num_rounds(parameters), parameters["seed"])
        report = bench.report("bench preemption", table, seed=parameters["seed"])
    publish(report, parameters)


def _engine(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import Report, conditions, overhead

    sizes = (1, 16) if parameters["quick"] else overhead.RUNNING
    table = overhead.overhead_table(sizes, num_rounds(parameters), note)
    if parameters["plot"] is not None:
        from paged_core.bench.plot import plot

        plot(table, "running", "sequence_us", Path(parameters["plot"]))
    publish(Report("bench engine", conditions(), [table]), parameters)


def _data(parameters: Mapping[str, Any]) -> Data:
    from paged_core.bench.data import FILES, read_data, sample_data

    folder = data_folder(parameters, FILES)
    return sample_data() if folder is None else read_data(folder)


_PART = Option(
    ["--part"], section=BENCH, multiple=True, type=click.Choice(_PARTS), help="Only this. Repeatable. Default: all."
)
_PROMPT = Option(
    ["--prompt"],
    section=BENCH,
    multiple=True,
    type=click.IntRange(1),
    help="Prompt tokens. Repeatable. Default: 16, 128, 512, 1024, 2048 and 8192.",
)
_WORKLOAD = Option(
    ["--workload"],
    section=BENCH,
    metavar="FILE",
    help="Requests as JSON. Default: 64 with the lengths of a chat service.",
)


def _with_engine(*own: click.Option) -> list[click.Option]:
    return [*own, *engine_options()]


_OWN = [
    benchmark(
        "sharing",
        _sharing,
        _with_engine(_PART, data_option(), clock_option("Of prefix: "), seed_option()),
        _SHARING_HELP,
    ),
    benchmark("latency", _latency, _with_engine(_PROMPT, rounds_option(), seed_option()), _LATENCY_HELP),
    benchmark("throughput", _throughput, _with_engine(_WORKLOAD, rounds_option(), seed_option()), _THROUGHPUT_HELP),
    benchmark("preemption", _preemption, _with_engine(rounds_option(), seed_option()), _PREEMPTION_HELP),
    benchmark("engine", _engine, [plot_option(), rounds_option()], _ENGINE_HELP),
    model_command(),
    linear_command(),
    kernels_command(),
    startup_command(),
    memory_command(),
    quality_command(),
]

bench_command = click.Group(
    "bench",
    commands=[
        *_OWN,
        peers_command(),
        serve_command(),
        tp_command(),
        all_command(_OWN),
    ],
    help="Measure on this machine, next to published figures or to the floors of its own peaks.",
)
