"""`paged-core simulate`: any policy on any trace, on a device that is not here."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.cli.command import Command
from paged_core.cli.simulate_options import rates_of, simulate_options, span, texts
from paged_core.errors import ConfigError
from paged_core.settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from paged_core.engine.config import EngineConfig
    from paged_core.sim.capacity import Criterion
    from paged_core.sim.sweep import Load, Point
    from paged_core.sim.system import System
    from paged_core.workload.plan import Workload

HELP = """Serve a load with the real engine on a virtual clock: latency, throughput, goodput, batches and memory.

Scheduler, allocator and preemption are the plugins that serve real models, those of --plugin included; only the model
is replaced, by one of what a step costs on a device. Several names or rates are compared, all on the same requests.
"""
_DURATION_S = 600.0
_MANY = 1_000_000
_GENERATED = ("sharegpt", "alpaca", "fixed")


def simulate(parameters: Mapping[str, Any]) -> int:
    """Run the comparison and report it. Returns the exit code: 1 when some system finished nothing at some rate."""
    from paged_core.bench.report import Report
    from paged_core.cli.bench_options import output_file, publish
    from paged_core.sim.capacity import Criterion
    from paged_core.sim.tables import tables_of

    picture = None if parameters["plot"] is None else Path(parameters["plot"])
    if picture is not None:
        from paged_core.bench.plot import check_plot

        check_plot(picture)
    if parameters["json"] is not None:
        output_file(parameters["json"])
    systems, facts = _systems(parameters)
    load = _load(parameters, min(one.max_model_len for one in facts.values()))
    criterion = Criterion(parameters["limit"], parameters["slo_share"])
    points = _run(parameters, systems, load, criterion)
    tables = tables_of(points, criterion)
    publish(Report("simulate", _conditions(systems, facts, load, points), tables), parameters)
    if picture is not None:
        from paged_core.sim.plots import draw

        title = f"{parameters['model']}, simulated; {points[0].source}"
        draw(points, title, picture, parameters["limit"])
    return 0 if all(point.measures.num_finished for point in points) else 1


def _run(parameters: Mapping[str, Any], systems: Mapping[str, System], load: Load, criterion: Criterion) -> list[Point]:
    from paged_core.sim.sweep import run, run_to_capacity

    rates, jobs = rates_of(parameters), parameters["jobs"]
    if not parameters["find_capacity"]:
        every: Sequence[float | None] = rates or ((None,) if load.workload.trace is not None else (1.0,))
        with progress(len(systems) * len(every)) as tell:
            return run(systems, load, every, jobs, tell)
    if len(rates) > 1 or float("inf") in rates:
        raise ConfigError("--find-capacity tries rates of its own, beginning with the one of --rate")
    with progress(len(systems)) as tell:
        return run_to_capacity(systems, load, rates[0] if rates else 1.0, criterion, jobs, tell)


def _systems(parameters: Mapping[str, Any]) -> tuple[dict[str, System], dict[str, EngineConfig]]:
    """The systems to compare by name, and the facts of each: building one finds whatever is wrong with it."""
    from paged_core.engine.clock import VirtualClock
    from paged_core.sim.system import System
    from paged_core.sim.variants import variants

    base = System(
        model=parameters["model"],
        cost=parameters["cost"],
        num_blocks=parameters["num_blocks"],
        num_host_blocks=parameters["num_host_blocks"],
        max_model_len=parameters["max_model_len"],
        max_num_seqs=parameters["max_num_seqs"],
        token_budget=parameters["token_budget"],
        chunked_prefill=parameters["chunked_prefill"],
        prefix_cache=parameters["prefix_cache"],
        plugin_modules=tuple(parameters["plugin_modules"]),
    )
    choices: dict[str, Sequence[Any]] = {name: texts(parameters[name]) for name in ("sched", "alloc", "preempt")}
    choices["device"] = texts(parameters["gpu"])
    choices["num_devices"] = _counts("--num-gpus", texts(parameters["num_gpus"]))
    choices["block_size"] = _counts("--block-size", texts(parameters["block_size"]))
    found = variants(base, choices)
    facts = {}
    for name, system in found.items():
        engine = system.build(VirtualClock())
        facts[name] = engine.facts
        engine.close()
    if list(found) == ["auto"]:
        chosen = facts["auto"].plugins["sched"]
        found, facts = {chosen: found["auto"]}, {chosen: facts["auto"]}
    return found, facts


def _counts(option: str, given: Sequence[str]) -> list[int]:
    for text in given:
        if not text.isdecimal() or not int(text):
            raise ConfigError(f"{option} {text}: a number above 0, or several with commas")
    return [int(text) for text in given]


def _load(parameters: Mapping[str, Any], longest: int) -> Load:
    from paged_core.bench.serve.figures import Slo
    from paged_core.sim.sweep import Load

    sampling: dict[str, Any] = {"n": parameters["n"]} if parameters["n"] > 1 else {}
    if parameters["beam_width"] is not None:
        sampling |= {"use_beam_search": True, "beam_width": parameters["beam_width"]}
    return Load(
        workload=_workload(parameters, longest),
        sampling=sampling,
        claimed_tokens=parameters["max_tokens"],
        until=parameters["until"],
        warmup=parameters["warmup"],
        slo=None if parameters["slo"] is None else Slo.parse(parameters["slo"]),
    )


def _workload(parameters: Mapping[str, Any], longest: int) -> Workload:
    from paged_core.workload.plan import Workload

    name, lengths = parameters["trace"], parameters["lengths"]
    traced = name not in _GENERATED and lengths is None
    if traced and not Path(name).is_file():
        hint = did_you_mean(name, list(_GENERATED)) or f"; known names are {', '.join(_GENERATED)}"
        raise ConfigError(f"--trace {name}: there is no such file{hint}")
    if not traced and (parameters["scale_lengths"] != 1 or parameters["slice"] is not None):
        raise ConfigError("--scale-lengths and --slice are for trace files")
    duration = parameters["duration"]
    if duration is None and parameters["num_prompts"] is None and not traced:
        duration = _DURATION_S
    workload = Workload(
        lengths=lengths or ("sharegpt" if traced else name),
        fixed=(parameters["prompt_tokens"], parameters["output_tokens"]),
        trace=Path(name) if traced else None,
        slice_s=span(parameters["slice"], "--slice"),
        length_factor=parameters["scale_lengths"],
        burstiness=parameters["burstiness"],
        num_requests=parameters["num_prompts"] or _MANY,
        duration_s=duration,
        most_tokens=longest,
        seed=parameters["seed"],
    )
    if float("inf") in rates_of(parameters) and not traced and parameters["num_prompts"] is None:
        raise ConfigError("--rate=inf has no duration: give --num-prompts")
    return workload


@contextmanager
def progress(total: int) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, where that is a terminal, to be told how many runs are done; parts of one count."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    shown = Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with shown as bar:
        task = bar.add_task("runs", total=total)
        yield lambda done: bar.update(task, completed=done)


def _conditions(
    systems: Mapping[str, System], facts: Mapping[str, EngineConfig], load: Load, points: Sequence[Point]
) -> dict[str, Any]:
    """What a reader needs to judge or repeat the figures."""
    from paged_core import __version__
    from paged_core.costs.choice import Server, device_called, find_cost, model_called

    base = next(iter(systems.values()))
    devices = dict.fromkeys((system.device, system.num_devices) for system in systems.values())
    found: dict[str, Any] = {
        "paged-core": __version__,
        "model": f"{base.model}, simulated on {', '.join(f'{count} x {name}' for name, count in devices)}",
        "costs": "; ".join(
            find_cost(base.cost, Server(base.model, model_called(base.model), device_called(name), count)).describe()
            for name, count in devices
        ),
        "plugins": "; ".join(f"{name}: {_described(one)}" for name, one in facts.items()),
        "requests": points[0].source,
        "seed": load.workload.seed,
        "warm-up": f"{load.warmup:.0%} of the time of arrivals",
    }
    if load.slo is not None:
        found["SLO"] = ", ".join(f"{name} {limit:g} ms" for name, limit in load.slo.limits_ms.items())
    if load.sampling:
        found["sampling"] = ", ".join(f"{name} {value}" for name, value in load.sampling.items())
    found["announced answers"] = "true lengths" if load.claimed_tokens is None else f"{load.claimed_tokens} tokens"
    if left_out := max(point.num_left_out for point in points):
        found["left out"] = f"{left_out} requests of more than {load.workload.most_tokens} tokens"
    rows, took_s = sum(point.num_rows for point in points), sum(point.took_s for point in points)
    found["simulated"] = f"{rows:,} sequence-steps at {rows / max(took_s, 1e-9):,.0f} a second and process"
    return found


def _described(facts: EngineConfig) -> str:
    """The plugins of a system, and its pool."""
    names = ", ".join(facts.plugins[kind] for kind in ("sched", "alloc", "preempt"))
    return f"{names}, {facts.num_blocks:,} blocks of {facts.block_size} slots"


simulate_command = Command("simulate", simulate, simulate_options(), HELP)
