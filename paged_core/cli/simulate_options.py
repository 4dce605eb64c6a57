"""The options of `paged-core simulate`, and what text in them means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Above, Option
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM, LOAD, REPORT = "System", "Load", "Report"
_COUNT, _ABOVE = click.IntRange(1), Above(0, min_open=True)
_PLUGIN = "NAME, or NAME:KEY=VALUE with a setting of its own; several (commas, or the option again) are compared."


def simulate_options() -> list[click.Option]:
    """All of them, by section."""
    return [*_machine(), *_policies(), *_requests(), *_pace(), *_report()]


def plugin_option(section: str) -> click.Option:
    """--plugin."""
    return Option(
        ["--plugin", "plugin_modules"],
        section=section,
        multiple=True,
        metavar="MODULE",
        help="Load one more plugin: a module name, a .py file or a package folder. Repeatable.",
    )


def texts(values: Sequence[str]) -> list[str]:
    """What a repeatable option was given, split at commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def rates_of(parameters: Mapping[str, Any]) -> tuple[float, ...]:
    """Rates of --rate and --rate-sweep, each once, ascending. ConfigError for what is no rate."""
    found = [_rate(text, "--rate") for text in texts(parameters["rate"])]
    if parameters["rate_sweep"] is not None:
        found += _between(parameters["rate_sweep"])
    return tuple(sorted(set(found)))


def span(text: str | None, name: str) -> tuple[float, float] | None:
    """BEGIN:END in seconds; either may be missing. ConfigError for anything else."""
    if text is None:
        return None
    begin, colon, end = text.partition(":")
    try:
        found = float(begin or 0), float(end or "inf")
    except ValueError:
        found = (1.0, 0.0)
    if not colon or not 0 <= found[0] < found[1]:
        raise ConfigError(f"{name} {text}: BEGIN:END, in seconds")
    return found


def _rate(text: str, name: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise ConfigError(f"{name} {text}: requests a second, above 0")
    return rate


def _between(text: str) -> list[float]:
    name = "--rate-sweep"
    parts = text.split(":")
    if len(parts) != 3 or not parts[2].isdecimal() or int(parts[2]) < 2:
        raise ConfigError(f"{name} {text}: LOW:HIGH:COUNT, such as 0.5:2:7")
    low, high, count = _rate(parts[0], name), _rate(parts[1], name), int(parts[2])
    if not low < high < float("inf"):
        raise ConfigError(f"{name} {text}: the first rate must be below the second one")
    return [round(low + i * (high - low) / (count - 1), 6) for i in range(count)]


def _machine() -> list[click.Option]:
    return [
        Option(["--model"], section=SYSTEM, metavar="NAME", default="opt-13b", help="Its shape. Default: opt-13b."),
        Option(
            ["--gpu"],
            section=SYSTEM,
            multiple=True,
            metavar="NAMES",
            help="The device; several (commas, or the option again) are compared. Default: a100-40gb.",
        ),
        Option(
            ["--num-gpus"],
            section=SYSTEM,
            multiple=True,
            metavar="NUMBERS",
            help="Devices that share the model; several are compared. Default: 1.",
        ),
        Option(
            ["--cost"],
            section=SYSTEM,
            metavar="NAME|FILE",
            default="auto",
            help="What a step costs: calibrated, roofline, a file of `paged-core calibrate`, module:attribute. "
            "Default: published coefficients where there are some, else the roofline.",
        ),
        Option(
            ["--num-blocks"],
            section=SYSTEM,
            type=_COUNT,
            help="Blocks of the KV pool. Default: what the weights leave; the paper's own for its servers.",
        ),
        Option(["--num-host-blocks"], section=SYSTEM, type=click.IntRange(0), help="To swap to. Default: as many."),
        Option(["--max-model-len"], section=SYSTEM, type=_COUNT, help="Longest sequence. Default: the model's."),
        Option(["--max-num-seqs"], section=SYSTEM, type=_COUNT, default=256, help="That run at a time. Default: 256."),
        Option(["--token-budget"], section=SYSTEM, type=_COUNT, default=2560, help="Tokens of a step. Default: 2560."),
        Option(["--chunked-prefill/--no-chunked-prefill"], section=SYSTEM, default=True, help="Default: chunked."),
        Option(["--prefix-cache/--no-prefix-cache"], section=SYSTEM, default=False, help="Default: none."),
    ]


def _policies() -> list[click.Option]:
    return [
        Option(["--sched"], section=SYSTEM, multiple=True, metavar="NAMES", help=f"Schedulers: {_PLUGIN}"),
        Option(["--alloc"], section=SYSTEM, multiple=True, metavar="NAMES", help="Allocators, likewise."),
        Option(["--preempt"], section=SYSTEM, multiple=True, metavar="NAMES", help="Preemption, likewise."),
        Option(["--block-size"], section=SYSTEM, multiple=True, metavar="SIZES", help="Slots, likewise. Default: 16."),
        plugin_option(SYSTEM),
    ]


def _requests() -> list[click.Option]:
    return [
        Option(
            ["--trace"],
            section=LOAD,
            metavar="FILE|NAME",
            default="sharegpt",
            help="A trace file (Azure, Mooncake, BurstGPT or plain), or lengths like those of sharegpt or alpaca, or "
            "fixed ones. Default: sharegpt.",
        ),
        Option(["--lengths"], section=LOAD, metavar="FILE", help="Instead: prompt_tokens and output_tokens of a CSV."),
        Option(["--prompt-tokens"], section=LOAD, type=_COUNT, default=512, help="Of --trace=fixed. Default: 512."),
        Option(["--output-tokens"], section=LOAD, type=_COUNT, default=128, help="Of --trace=fixed. Default: 128."),
        Option(["--slice"], section=LOAD, metavar="BEGIN:END", help="Only these seconds of a trace file."),
        Option(
            ["--scale-lengths", "--length-factor"],
            section=LOAD,
            type=_ABOVE,
            default=1.0,
            help="Of a trace file, times. Default: 1.",
        ),
        Option(["--n"], section=LOAD, type=_COUNT, default=1, help="Answers a request. Default: 1."),
        Option(["--beam-width"], section=LOAD, type=_COUNT, help="Beam search with so many beams."),
        Option(
            ["--max-tokens"],
            section=LOAD,
            type=_COUNT,
            help="What every request announces as its longest answer. Default: its true length, known beforehand.",
        ),
    ]


def _pace() -> list[click.Option]:
    return [
        Option(
            ["--rate", "--rates"],
            section=LOAD,
            multiple=True,
            metavar="RATES",
            help="Requests a second, or inf: all at once; several with commas. Default: 1, or the trace's own.",
        ),
        Option(["--rate-sweep"], section=LOAD, metavar="LOW:HIGH:COUNT", help="Rates at equal distances."),
        Option(
            ["--burstiness"],
            section=LOAD,
            type=_ABOVE,
            default=1.0,
            help="Shape of the gaps: 1 is Poisson, less is burstier, inf spaces all alike. Default: 1.",
        ),
        Option(
            ["--num-prompts", "--num-requests"],
            section=LOAD,
            type=_COUNT,
            help="At most so many a rate. Default: no limit.",
        ),
        Option(
            ["--duration"],
            section=LOAD,
            type=_ABOVE,
            help="Seconds of arrivals. Default: 600 unless --num-prompts is given; all of a trace file.",
        ),
        Option(["--until"], section=LOAD, type=_ABOVE, help="Stop the clock there. Default: when all have ended."),
        Option(["--seed"], section=LOAD, type=click.INT, default=0, help="Of lengths, arrivals and draws. Default: 0."),
    ]


def _report() -> list[click.Option]:
    return [
        Option(["--slo"], section=REPORT, metavar="LIMITS", help="Count goodput: ttft:1000,tpot:100,e2e:20000, in ms."),
        Option(
            ["--limit"],
            section=REPORT,
            type=_ABOVE,
            default=0.5,
            help="Normalized latency, s/token, at which capacity is read. Default: 0.5.",
        ),
        Option(
            ["--slo-share"],
            section=REPORT,
            type=click.FloatRange(0, 1),
            default=0.9,
            help="Share of requests within the SLO that capacity asks for besides. Default: 0.9.",
        ),
        Option(
            ["--find-capacity"],
            section=REPORT,
            is_flag=True,
            help="Try rates, from the one of --rate on, until capacity is known to 2 %.",
        ),
        Option(
            ["--warmup"],
            section=REPORT,
            type=click.FloatRange(0, 1, max_open=True),
            default=0.1,
            help="Share of the time of arrivals that figures leave out. Default: 0.1.",
        ),
        Option(["--jobs"], section=REPORT, type=_COUNT, default=1, help="Processes. Default: 1."),
        Option(["--output", "json"], section=REPORT, metavar="FILE", help="Write tables and conditions as JSON."),
        Option(["--plot"], section=REPORT, metavar="FILE", help="Draw the curves: .svg, .png or .pdf."),
    ]
