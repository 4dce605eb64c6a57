"""`paged-core bench serve`: load on a server that speaks OpenAI's API, and what its callers see."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.bench_options import BENCH, benchmark, plot_option, publish, seed_option
from paged_core.cli.command import Above, Option
from paged_core.cli.report import note
from paged_core.errors import ConfigError
from paged_core.server.descriptors import take_descriptors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.bench.serve.sweep import Outcome, Sweep
    from paged_core.cli.command import Command

_HELP = """Offer requests to any server that speaks OpenAI's API, at one rate or several: what a caller sees of it.

Arrivals are an open loop: they do not wait for answers. Percentiles of times, throughput, goodput under an SLO,
failures by kind. The server is left running. Exit code 1 when nothing was answered at some rate.
"""
_QUICK_REQUESTS = 8
_ARRIVALS = ("poisson", "gamma", "constant")
_MANY = 1_000_000
_FEW = 100
_SEED_TEXT = "Seed of lengths and arrivals; texts are new in every run. Default: 0."
_CONNECTIONS = 10_240  # what macOS allows at most


def _serve(parameters: Mapping[str, Any]) -> int:
    if find_spec("aiohttp") is None:
        raise ConfigError('`bench serve` needs aiohttp: pip install "paged-core[bench]"')
    from paged_core.bench import Report, conditions
    from paged_core.bench.serve.sweep import run
    from paged_core.bench.serve.tables import tables_of, write_requests
    from paged_core.engine import aio

    chosen = _sweep(parameters)
    picture = None if parameters["plot"] is None else Path(parameters["plot"])
    if picture is not None:
        from paged_core.bench.plot import check_plot

        check_plot(picture)
    take_descriptors(_CONNECTIONS)
    about = conditions()  # the load before it is that of others and of the server at rest
    outcome: Outcome = aio.run(run(chosen, note))
    publish(Report("bench serve", about | outcome.conditions, tables_of(outcome.summaries)), parameters)
    if parameters["requests"] is not None:
        write_requests(outcome.records, outcome.summaries, Path(parameters["requests"]))
    if picture is not None:
        from paged_core.bench.serve.curves import draw

        draw(outcome.summaries, f"{outcome.conditions['model']}, {outcome.conditions['requests']}", picture)
    return 0 if all(one.num_ok for one in outcome.summaries) else 1


def _sweep(parameters: Mapping[str, Any]) -> Sweep:
    from paged_core.bench.serve.client import Target
    from paged_core.bench.serve.figures import Slo
    from paged_core.bench.serve.sweep import Sweep
    from paged_core.workload.plan import Workload

    trace, rates = parameters["trace"], parameters["rate"]
    if trace is None and parameters["length_factor"] != 1:
        raise ConfigError("--length-factor is for --trace")
    if trace is not None and (parameters["arrivals"] or parameters["lengths"]):
        raise ConfigError("--trace has its own arrivals and lengths: leave out --arrivals and --lengths")
    workload = Workload(
        lengths=parameters["lengths"] or "sharegpt",
        fixed=(parameters["prompt_tokens"], parameters["output_tokens"]),
        trace=None if trace is None else Path(trace),
        length_factor=parameters["length_factor"],
        burstiness=_burstiness(parameters),
        num_requests=_num_requests(parameters),
        duration_s=parameters["duration"],
        most_tokens=parameters["longest"],
        seed=parameters["seed"],
    )
    target = Target(
        base_url=parameters["base_url"],
        model=parameters["model"],
        api_key=parameters["api_key"],
        endpoint=parameters["endpoint"],
        ignore_eos=parameters["ignore_eos"],
        timeout_s=parameters["timeout"],
    )
    return Sweep(
        target=target,
        workload=workload,
        rates=rates or (() if trace is not None else (1.0,)),
        max_concurrency=parameters["max_concurrency"],
        warmup=parameters["warmup"],
        slo=None if parameters["slo"] is None else Slo.parse(parameters["slo"]),
        shared_prefix=parameters["shared_prefix"],
    )


def _burstiness(parameters: Mapping[str, Any]) -> float:
    from paged_core.workload.arrivals import CONSTANT, POISSON

    process, given = parameters["arrivals"] or "poisson", parameters["burstiness"]
    if (process == "gamma") != (given is not None):
        raise ConfigError("--arrivals=gamma and --burstiness go together")
    return float({"poisson": POISSON, "constant": CONSTANT}.get(process, given))


def _num_requests(parameters: Mapping[str, Any]) -> int:
    """As many as were asked for; a duration alone bounds them by itself."""
    if parameters["num_requests"] is not None:
        return int(parameters["num_requests"])
    if parameters["quick"]:
        return _QUICK_REQUESTS
    if parameters["duration"] is not None and float("inf") in parameters["rate"]:
        raise ConfigError("--rate=inf has no duration: give --num-requests as well")
    return _FEW if parameters["duration"] is None else _MANY


def _server_options() -> list[click.Option]:
    part = "Server"
    return [
        Option(["--base-url"], section=part, metavar="URL", required=True, help="Where it is, with or without /v1."),
        Option(["--model"], section=part, metavar="NAME", help="Its model. Default: the first one that it lists."),
        Option(
            ["--api-key"],
            section=part,
            metavar="KEY",
            envvar="OPENAI_API_KEY",
            help="Its key. Default: OPENAI_API_KEY of the environment.",
        ),
        Option(
            ["--endpoint"],
            section=part,
            type=click.Choice(["completions", "chat"]),
            default="completions",
            help="Default: completions.",
        ),
        Option(
            ["--ignore-eos/--no-ignore-eos"],
            section=part,
            default=True,
            help="Ask for answers of full length; --no-ignore-eos for servers that refuse the field. Default: on.",
        ),
        Option(
            ["--timeout"],
            section=part,
            type=Above(0, min_open=True),
            default=600.0,
            help="Seconds a request may take. Default: 600.",
        ),
    ]


def _load_options() -> list[click.Option]:
    count, above = click.IntRange(1), Above(0, min_open=True)
    return [
        Option(
            ["--rate"],
            section=BENCH,
            multiple=True,
            type=above,
            help="Requests a second, or inf: all at once. Repeatable: a sweep. Default: 1, or the trace's own.",
        ),
        Option(["--arrivals"], section=BENCH, type=click.Choice(_ARRIVALS), help="Process. Default: poisson."),
        Option(
            ["--burstiness"],
            section=BENCH,
            type=above,
            help="Shape of gamma-distributed gaps: 1 is Poisson, less is burstier, more is steadier.",
        ),
        Option(["--max-concurrency"], section=BENCH, type=count, help="Hold requests beyond so many. Default: none."),
        Option(["--num-requests"], section=BENCH, type=count, help="A rate. Default: 100, or what --duration holds."),
        Option(["--duration"], section=BENCH, type=above, help="Offer requests for so many seconds a rate."),
        Option(["--warmup"], section=BENCH, type=click.IntRange(0), default=3, help="Requests before it. Default: 3."),
        Option(
            ["--slo"],
            section=BENCH,
            metavar="LIMITS",
            help="Count goodput: ttft:200,tpot:50,e2e:2000 in milliseconds, or some of them.",
        ),
    ]


def _length_options() -> list[click.Option]:
    count = click.IntRange(1)
    return [
        Option(["--trace"], section=BENCH, metavar="FILE", help="Arrivals and lengths: docs/cli.md has the formats."),
        Option(
            ["--length-factor"],
            section=BENCH,
            type=Above(0, min_open=True),
            default=1.0,
            help="Multiply all lengths of the trace. Default: 1.",
        ),
        Option(
            ["--lengths"],
            section=BENCH,
            metavar="NAME|FILE",
            help="sharegpt, alpaca, fixed, or a CSV file of prompt_tokens and output_tokens. Default: sharegpt.",
        ),
        Option(["--prompt-tokens"], section=BENCH, type=count, default=128, help="Of --lengths=fixed. Default: 128."),
        Option(["--output-tokens"], section=BENCH, type=count, default=128, help="Of --lengths=fixed. Default: 128."),
        Option(
            ["--longest"],
            section=BENCH,
            type=count,
            help="Leave out requests of more tokens, prompt and output. Default: what the server says that it takes.",
        ),
        Option(
            ["--shared-prefix"],
            section=BENCH,
            type=click.IntRange(0),
            default=0,
            help="Tokens with which all prompts begin alike. Default: 0.",
        ),
    ]


def serve_command() -> Command:
    """`bench serve`."""
    requests = Option(["--requests"], section=BENCH, metavar="FILE", help="Write every request as a line of JSON.")
    own = [*_load_options(), *_length_options(), seed_option(_SEED_TEXT), plot_option(), requests]
    return benchmark("serve", _serve, [*own, *_server_options()], _HELP)
