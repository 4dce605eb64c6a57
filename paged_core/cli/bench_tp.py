"""`paged-core bench tp`: what tensor parallelism costs and gains a step here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.bench_options import (
    BENCH,
    benchmark,
    model_settings,
    num_rounds,
    publish,
    rounds_option,
    seed_option,
)
from paged_core.cli.command import Option
from paged_core.cli.options import engine_options
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.cli.command import Command

_HELP = """A decode step of a model that ranks share (--executor=tp), beside the same model in one process.

Control message, answer and meetings of the ranks are counted and timed at several batch sizes. Without
--tensor-parallel-size, the smallest above 1 that the model's heads allow.
"""


def _tp(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench.parallel import Choice, parallel_report

    default = Choice()
    choice = Choice(
        batches=parameters["batch"] or ((1, 8) if parameters["quick"] else default.batches),
        answer=8 if parameters["quick"] else default.answer,
        rounds=num_rounds(parameters),
        seed=parameters["seed"],
    )
    publish(parallel_report(model_settings(parameters), choice, note), parameters)


def tp_command() -> Command:
    """`bench tp`."""
    text = "Sequences at once. Repeatable. Default: 1, 8, 32 and 128."
    batch = Option(["--batch"], section=BENCH, multiple=True, type=click.IntRange(1), help=text)
    options = [batch, rounds_option(), seed_option(), *engine_options(without=frozenset({"executor"}))]
    return benchmark("tp", _tp, options, _HELP)
