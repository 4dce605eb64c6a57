"""`paged-core bench model`: decoding in batches, of a model or of a mere shape with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.bench.peers import WEIGHTS
from paged_core.bench.shapes import PREFIX
from paged_core.cli.bench_options import (
    BENCH,
    benchmark,
    model_settings,
    num_rounds,
    publish,
    rounds_option,
    seed_option,
    with_shapes,
)
from paged_core.cli.command import Option
from paged_core.cli.options import engine_options
from paged_core.cli.report import note
from paged_core.costs.models import MODELS
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.cli.command import Command

_HELP = """Decoding speed in batches, with bf16 and with int8 weights, held against the floor of this machine's peaks.

Without a model, of a Llama of 1.1B with random weights: nothing is downloaded or read, 4 GiB of memory are needed.
"""
_DEFAULT = "llama-1.1b"
_QUICK = "tiny"


def _model(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench.batches import Choice, batches_report

    settings, shape = model_settings(parameters), parameters["shape"]
    if shape is not None and "model" in settings:
        raise ConfigError("--shape and --model name two models; give one of them")
    if "model" not in settings:
        settings["model"] = PREFIX + (shape or (_QUICK if parameters["quick"] else _DEFAULT))
        settings = with_shapes(settings)
    default = Choice()
    choice = Choice(
        weights=parameters["weights"] or default.weights,
        batches=parameters["batch"] or default.batches,
        rounds=num_rounds(parameters),
        seed=parameters["seed"],
    )
    publish(batches_report(settings, choice, note), parameters)


def model_command() -> Command:
    """`bench model`."""
    options = [
        Option(
            ["--shape"],
            section=BENCH,
            type=click.Choice(list(MODELS)),
            help=f"A shape with random weights. Default: {_DEFAULT}.",
        ),
        Option(
            ["--batch"],
            section=BENCH,
            multiple=True,
            type=click.IntRange(1),
            help="Sequences at once. Repeatable. Default: 1 and 16.",
        ),
        Option(
            ["--weights"],
            section=BENCH,
            multiple=True,
            type=click.Choice(list(WEIGHTS)),
            help="Only weights of this width. Repeatable. Default: both.",
        ),
        rounds_option(),
        seed_option(),
        *engine_options(without=frozenset({"dtype", "quantization"})),
    ]
    return benchmark("model", _model, options, _HELP)
