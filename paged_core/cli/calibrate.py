"""`paged-core calibrate`: what steps take on this machine, as a cost model for simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.bench_options import (
    BENCH,
    benchmark,
    clock_option,
    model_settings,
    num_rounds,
    output_file,
    publish,
    seed_option,
)
from paged_core.cli.command import Option
from paged_core.cli.options import engine_options
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from paged_core.bench.report import Table
    from paged_core.cli.calibrate_check import Check
    from paged_core.engine.assemble import Assembly
    from paged_core.engine.engine import Engine
    from paged_core.sim.calibration import Measured

HELP = """Measure what steps of a model take on this machine (prompts, decodes and both, of many sizes), fit a cost
model to them and write it: `simulate --model FILE --gpu FILE --cost FILE` then simulates this machine.

A third of the kinds of steps is held out of the fit and says how far it is off. With --check the real engine also
serves a load, in turns with the measurement, and is compared with its own simulation.
"""
_ROUNDS = 5


def calibrate(parameters: Mapping[str, Any]) -> None:
    """Measure, fit, write, report."""
    from paged_core.bench import Report, conditions
    from paged_core.bench.timing import CLOCKS
    from paged_core.cli.calibrate_check import Check
    from paged_core.engine.assemble import assemble, load_settings
    from paged_core.engine.clock import BusyClock

    output = output_file(parameters["output"])
    given = {"max_num_seqs": 64, "prefix_cache": False, **model_settings(parameters)}
    clock = BusyClock(CLOCKS[parameters["clock"]])
    assembly = assemble(load_settings(**given), clock=clock)
    try:
        found = conditions(assembly.engine.facts, clock=parameters["clock"], rounds=num_rounds(parameters))
        check = Check(assembly.engine, clock, parameters) if parameters["check"] else None
        measured = _measure(assembly.engine, check, parameters)
        tables = [_write(assembly, measured, output, parameters, {name: str(value) for name, value in found.items()})]
        tables += [] if check is None else [check.table(output)]
    finally:
        assembly.close()
    publish(Report("calibrate", found, tables), parameters)
    note(f"written: {output}")


def _measure(engine: Engine, check: Check | None, parameters: Mapping[str, Any]) -> Measured:
    """Steps of all kinds, in turns with the loads of `check`."""
    from paged_core.bench.timing import CLOCKS
    from paged_core.sim.calibration import measure, scenarios

    facts, rounds = engine.facts, num_rounds(parameters)
    wanted = scenarios(facts.token_budget, facts.max_num_seqs, facts.kv_tokens, facts.max_model_len)
    wanted = wanted[:: 3 if parameters["quick"] else 1]

    def after_round(done: int) -> None:
        note(f"round {done} of {rounds}: {len(wanted)} kinds of steps")
        if check is not None:
            check.serve()

    return measure(engine, wanted, rounds, CLOCKS[parameters["clock"]], after_round)


def _write(
    assembly: Assembly, measured: Measured, output: Path, parameters: Mapping[str, Any], found: Mapping[str, str]
) -> Table:
    """Fit, write the file, tell how good it is."""
    from paged_core.bench.report import Column, Table
    from paged_core.costs.fitted import Calibration
    from paged_core.engine.assemble import find_loader, load_settings
    from paged_core.sim.calibration import fitted

    facts = assembly.engine.facts
    source = f"{facts.model} in {facts.dtype} on {found['processor']}, {found['date']}, {found['clock']} time"
    costs, within, held_out = fitted(measured, source)
    spec = find_loader(load_settings(**model_settings(parameters)), assembly.plugins)[1].spec()
    device = _device(facts.device, facts.dtype, parameters)
    Calibration(facts.model, spec, device, costs, within, held_out, found).write(output)
    table = Table("Cost of a step", (Column("part", "part"), Column("value", "microseconds", ",.3f")))
    table.add("a step", costs.step * 1e6)
    for first, last, slope in zip((1, *costs.edges), (*costs.edges, None), costs.tokens, strict=True):
        table.add(f"a token, {first} to {last}" if last else f"a token beyond {first}", slope * 1e6)
    table.add("a draw", costs.draw * 1e6)
    table.add("a token attended to by decodes", costs.context * 1e6)
    table.add("a pair of prompt tokens", costs.square * 2e6)
    table.notes += [f"Made from {within}.", f"Held out, of a fit without them: {held_out}."]
    return table


def _device(device: str, dtype: str, parameters: Mapping[str, Any]) -> Any:
    """This machine by its peaks, for the roofline and for memory."""
    from paged_core.bench.peaks import measure_peaks
    from paged_core.costs.devices import Device
    from paged_core.engine.free_memory import memory_limit

    num_bytes, order = (16 << 20, 512) if parameters["quick"] else (None, None)
    peaks = measure_peaks(num_bytes, order, parameters["clock"], device)
    if device == "cuda":
        from paged_core.engine.hardware import gpu_memory

        memory = gpu_memory()[1]
    else:
        memory = memory_limit()
    copies = peaks.copy_bytes or peaks.read_bytes
    return Device("this-machine", memory, peaks.read_bytes, peaks.rate(dtype), copies / 2, step_s=1e-3, layer_s=0.0)


def _options() -> list[click.Option]:
    """The command's own, and the engine's."""
    rounds = f"Measured rounds, of which each kind of step has its median. Default: {_ROUNDS}."
    output = "The file to write. Default: costs.json."
    return [
        Option(["--output"], section=BENCH, metavar="FILE", default="costs.json", help=output),
        Option(["--rounds"], section=BENCH, type=click.IntRange(1), default=_ROUNDS, help=rounds),
        clock_option(),
        *_check_options(),
        *engine_options(),
    ]


def _check_options() -> list[click.Option]:
    """What --check serves."""
    check = "Serve a load on the real engine, too, and compare it with its simulation."
    lengths = "CSV of prompt_tokens and output_tokens for --check. Default: ShareGPT-like lengths, drawn."
    requests, scale = "Requests of the load of --check. Default: 64.", "Lengths of --check times this. Default: 0.25."
    share = click.FloatRange(0, 1, min_open=True)
    return [
        Option(["--check"], section=BENCH, is_flag=True, help=check),
        Option(["--requests"], section=BENCH, type=click.IntRange(1), default=64, help=requests),
        Option(["--lengths"], section=BENCH, metavar="FILE", help=lengths),
        Option(["--scale"], section=BENCH, type=share, default=0.25, help=scale),
        seed_option("Seed of the load of --check. Default: 0."),
    ]


calibrate_command = benchmark("calibrate", calibrate, _options(), HELP)
