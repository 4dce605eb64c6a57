"""`paged-core bench linear` and `bench attention`: the two kinds of kernel that take nearly all of a step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.bench_options import (
    BENCH,
    benchmark,
    clock_option,
    num_rounds,
    publish,
    rounds_option,
    threads_option,
)
from paged_core.cli.command import Option
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.bench.peaks import Peaks
    from paged_core.bench.report import Table
    from paged_core.cli.command import Command

_LINEAR_HELP = """Every path of a linear layer on the shapes of SmolLM2-135M and of a Llama of 1.1B, at 1 to 256 rows.

Weights come from memory, not from caches. Each is held against the floor of this machine's peaks.
"""
_ATTENTION_HELP = """An attention plugin alone: decode and prefill through block tables, held against the floor of
this machine's peaks.
"""
_DTYPES = ("bfloat16", "float32")
_KV_DTYPES = (*_DTYPES, "float16", "uint8")
_MODELS = ("smollm2", "llama")


def _linear(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import linear

    peaks = _peaks(parameters)
    field = linear.contestants(parameters["dtype"] or _DTYPES, note)
    quick, rounds, clock = parameters["quick"], num_rounds(parameters), parameters["clock"]
    effort = linear.Effort(rounds, linear.ROTATION // 4, clock) if quick else linear.Effort(rounds, clock=clock)
    names = parameters["shapes"] or (_MODELS[:1] if quick else _MODELS)
    shapes = [shape for name in names for shape in linear.MODELS[name]]
    rows = parameters["rows"] or ((1, 4) if quick else linear.ROWS)
    readings = [one for shape in shapes for one in linear.read(shape, rows, field, effort, note)]
    _report("bench linear", linear.linear_tables(readings, field, peaks, effort), peaks, parameters)


def _attention(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import attention
    from paged_core.bench.attention_table import attention_tables
    from paged_core.plugins import bootstrap
    from paged_core.settings import Settings

    settings = Settings.load(attn=parameters["attn"], block_size=parameters["block_size"])
    peaks = _peaks(parameters)
    rounds, clock = num_rounds(parameters), parameters["clock"]
    choice = attention.Choice(settings.attn, settings.block_size, parameters["kv_dtype"], rounds, clock)
    cases = attention.QUICK if parameters["quick"] else (*attention.DECODES, *attention.PREFILLS)
    tables = attention_tables(bootstrap(settings), cases, choice, peaks, note)
    _report("bench attention", tables, peaks, parameters)


def _peaks(parameters: Mapping[str, Any]) -> Peaks:
    """The peaks with the threads that were asked for, which everything that follows keeps."""
    import torch

    from paged_core.bench.peaks import measure_peaks

    if parameters["threads"] is not None:
        torch.set_num_threads(parameters["threads"])
    note("measuring the peaks of this machine")
    return measure_peaks(clock=parameters["clock"])


def _report(command: str, tables: list[Table], peaks: Peaks, parameters: Mapping[str, Any]) -> None:
    import torch

    from paged_core.bench import Report, conditions

    facts = conditions(threads=torch.get_num_threads(), clock=parameters["clock"])
    publish(Report(command, facts, [*tables, peaks.table()]), parameters)


def linear_command() -> Command:
    """`bench linear`."""
    options = [
        Option(
            ["--shapes"],
            section=BENCH,
            multiple=True,
            type=click.Choice(_MODELS),
            help="Of this model only. Repeatable. Default: both.",
        ),
        Option(
            ["--rows"],
            section=BENCH,
            multiple=True,
            type=click.IntRange(1),
            help="Rows of the input. Repeatable. Default: 1, 4, 16, 64 and 256.",
        ),
        Option(
            ["--dtype"],
            section=BENCH,
            multiple=True,
            type=click.Choice(_DTYPES),
            help="Element type of inputs and outputs. Repeatable. Default: bfloat16 and float32.",
        ),
        rounds_option(),
        clock_option(),
        threads_option(),
    ]
    return benchmark("linear", _linear, options, _LINEAR_HELP)


def attention_command() -> Command:
    """`bench attention`."""
    options = [
        Option(["--attn"], section=BENCH, metavar="NAME", help="Attention backend: a plugin name, or auto."),
        Option(
            ["--block-size"], section=BENCH, type=click.IntRange(1), help="Token slots of one KV block. Default: 16."
        ),
        Option(
            ["--kv-dtype"],
            section=BENCH,
            multiple=True,
            type=click.Choice(_KV_DTYPES),
            help="Element type of the KV cache; but for uint8 also of the queries. Repeatable. Default: bfloat16, "
            "float32 and uint8, those that the plugin has.",
        ),
        rounds_option(),
        clock_option(),
        threads_option(),
    ]
    return benchmark("attention", _attention, options, _ATTENTION_HELP)
