"""`paged-core bench startup` and `bench memory`: what a process costs before and beside its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.cli.bench_options import benchmark, num_rounds, publish, rounds_option
from paged_core.cli.options import engine_flags, engine_options
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.cli.command import Command

_HELP = """What a person waits for before the first token, in fresh processes: with a warm and with an empty cache of
compiled kernels, by phase; and the time of `paged-core --help`.
"""
_MOST_COLD = 3
_MEMORY_HELP = """What a process holds in memory beside weights and keys and values, while it loads and while it works,
with bf16 and with int8 weights: the peaks of fresh processes.
"""
_MEMORY_ROUNDS = 3


def _startup(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import Report, conditions, startup

    rounds = num_rounds(parameters)
    flags = engine_arguments(parameters)
    starts = startup.observe(flags, rounds, min(rounds, _MOST_COLD), note)
    tables = [startup.startup_table(starts), startup.phases_table(starts)]
    publish(Report("bench startup", conditions(options=" ".join(flags) or "none"), tables), parameters)


def engine_arguments(parameters: Mapping[str, Any]) -> list[str]:
    """The engine options that were given, as they are written on a command line."""
    found: list[str] = []
    for name, value in engine_flags(parameters).items():
        flag = name.replace("_", "-")
        if name == "plugin_modules":
            found += [word for module in value for word in ("--plugin", module)]
        elif isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            found += [f"--{flag}", str(value)]
    return found


def startup_command() -> Command:
    """`bench startup`."""
    return benchmark("startup", _startup, [rounds_option(), *engine_options()], _HELP)


def _memory(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import Report, conditions, resident
    from paged_core.bench.peers import WEIGHTS

    given = {"kv_memory": resident.POOL, **engine_flags(parameters)}
    ways = {name: {**given, **settings} for name, settings in WEIGHTS.items()}
    table = resident.memory_table(ways, num_rounds(parameters), note)
    settings = "; ".join(f"{name} {value}" for name, value in given.items())
    publish(Report("bench memory", conditions(settings=settings), [table]), parameters)


def memory_command() -> Command:
    """`bench memory`."""
    varied = frozenset({"dtype", "quantization"})
    options = [rounds_option(_MEMORY_ROUNDS), *engine_options(without=varied)]
    return benchmark("memory", _memory, options, _MEMORY_HELP)
