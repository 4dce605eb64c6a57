"""`paged-core bench linear` and `bench kernels`: the two kinds of kernel that take nearly all of a step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.bench.kernels.cases import HEADS, OPERATIONS
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
from paged_core.settings import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.bench.peaks import Peaks
    from paged_core.bench.report import Table
    from paged_core.cli.command import Command

_LINEAR_HELP = """Every path of a linear layer on the shapes of SmolLM2-135M and of a Llama of 1.1B, at 1 to 256 rows.

Weights come from memory, not from caches. Each is held against the floor of this machine's peaks.
"""
_KERNELS_HELP = """Every kernel of an attention plugin, through its contract: decode, prefill of whole prompts and of
chunks, writing, copying and swapping blocks.

Each beside what this device copies and multiplies in the same run, and beside attention on contiguous keys and values.
"""
_DTYPES = ("bfloat16", "float32")
_KV_DTYPES = (*_DTYPES, "float16", "uint8", "float8_e4m3fn")
_DEVICES = ("auto", "cpu", "cuda")
_GRID = "Repeatable. Default: chosen cases, unless one of heads, context and batch is given: then their combinations."
_KV_TEXT = (
    "Element type of the KV cache, and but for uint8 and e4m3 of the queries. Repeatable. Default: all that the plugin "
    "declares, of a CPU bfloat16, float32 and uint8."
)
_MEMORY_TEXT = (
    "Most memory for what is compared; larger cases are left out. Default: 2GiB, of a GPU a quarter of what is free."
)
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


def _kernels(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench.kernels.run import Asked, Effort, kernel_tables
    from paged_core.bench.site import site_of
    from paged_core.engine.hardware import choose_device
    from paged_core.plugins import bootstrap
    from paged_core.settings import Settings

    settings = Settings.load(attn=parameters["attn"], device=parameters["device"])
    plugins, device = bootstrap(settings), choose_device(settings.device)
    asked = Asked(
        plugin=settings.attn,
        operations=parameters["operation"] or OPERATIONS,
        heads=parameters["heads"],
        contexts=parameters["context"],
        batches=parameters["batch"],
        block_sizes=parameters["block_size"] or (settings.block_size,),
        kv_dtypes=parameters["kv_dtype"],
    )
    asked.backends(plugins, device)  # a plugin that does not fit is told before anything is measured
    peaks = _peaks(parameters, device)
    effort = Effort(num_rounds(parameters), quick=parameters["quick"], memory=parse_bytes(parameters["memory"]))
    tables = kernel_tables(plugins, asked, effort, site_of(device, parameters["clock"]), peaks, note)
    _report("bench kernels", tables, peaks, parameters, device)


def _peaks(parameters: Mapping[str, Any], device: str = "cpu") -> Peaks:
    """The peaks with the threads that were asked for, which everything that follows keeps."""
    import torch

    from paged_core.bench.peaks import measure_peaks

    if parameters["threads"] is not None:
        torch.set_num_threads(parameters["threads"])
    note("measuring the peaks of this machine")
    return measure_peaks(clock=parameters["clock"], device=device)


def _report(
    command: str, tables: list[Table], peaks: Peaks, parameters: Mapping[str, Any], device: str = "cpu"
) -> None:
    import torch

    from paged_core.bench import Report, conditions

    clock = parameters["clock"] if device == "cpu" else "events"
    facts = conditions(threads=torch.get_num_threads(), clock=clock, device=device)
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


def kernels_command() -> Command:
    """`bench kernels`."""
    options = [
        Option(["--attn"], section=BENCH, metavar="NAME", help="Attention backend: a plugin name, or auto."),
        Option(["--device"], section=BENCH, type=click.Choice(_DEVICES), help="Default: cuda where there is one."),
        _several("--operation", click.Choice(OPERATIONS), "Only this. Repeatable. Default: all."),
        _several(
            "--heads", click.Choice(list(HEADS)), "Heads of Llama 3 8B (32/8 x 128), 32/32 x 128 or 9/3 x 64. " + _GRID
        ),
        _several("--context", click.IntRange(2), "Tokens of a sequence. " + _GRID),
        _several("--batch", click.IntRange(1), "Sequences. " + _GRID),
        _several("--block-size", click.IntRange(1), "Token slots of one KV block. Repeatable. Default: 16."),
        _several("--kv-dtype", click.Choice(_KV_DTYPES), _KV_TEXT),
        Option(["--memory"], section=BENCH, metavar="SIZE", help=_MEMORY_TEXT),
        rounds_option(),
        clock_option("Of a CPU: "),
        threads_option(),
    ]
    return benchmark("kernels", _kernels, options, _KERNELS_HELP)


def _several(name: str, kind: click.ParamType[Any], text: str) -> Option:
    """An option that may be given several times."""
    return Option([name], section=BENCH, multiple=True, type=kind, help=text)
