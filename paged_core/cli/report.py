"""What the commands tell the user on stderr: start-up timings, the table after an answer, the engine's counts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from paged_core.api.output import RequestMetrics, RequestOutput
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.metrics import EngineStats, Quantiles

_IMPORTED_AT = time.monotonic()


def note(text: str = "") -> None:
    """One line to stderr; stdout belongs to the answers."""
    click.echo(text, err=True)


def table(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns on stderr."""
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        note(f"  {name.ljust(width)}  {value}")


def process_age_s() -> float:
    """Seconds since this process began. Where the system does not tell: since this module was imported."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), in ticks since boot
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - _IMPORTED_AT


def answer_rows(output: RequestOutput, facts: EngineConfig, stats: EngineStats) -> list[tuple[str, str]]:
    """The table of one finished answer. Blocks: the most the pool held at once."""
    num_output = sum(len(one.token_ids) for one in output.outputs)
    reasons = ", ".join(str(one.finish_reason) for one in output.outputs)
    rows = [
        ("prompt", f"{len(output.prompt_token_ids):,} tokens, {output.num_cached_tokens:,} from the prefix cache"),
        ("output", f"{num_output:,} tokens, ended by: {reasons}"),
    ]
    rows += _speed_rows(output.metrics, num_output)
    rows.append(("KV blocks", f"{stats.peak_blocks:,} of {facts.num_blocks:,}, {facts.block_size} slots each"))
    if len(output.outputs) == 1 and num_output:
        # The last token of an answer is never written: nothing attends to it.
        written = len(output.prompt_token_ids) + num_output - 1
        slots = -(-written // facts.block_size) * facts.block_size
        rows.append(("tail waste", f"{slots - written} of {slots:,} slots ({(slots - written) / slots:.1%})"))
    return rows


def _speed_rows(metrics: RequestMetrics | None, num_output: int) -> list[tuple[str, str]]:
    if metrics is None or metrics.first_token_time is None or metrics.finished_time is None:
        return []
    rows = [("TTFT", f"{metrics.first_token_time - metrics.arrival_time:.3f} s")]
    decode_s = metrics.finished_time - metrics.first_token_time
    if num_output > 1 and decode_s > 0:
        rows.append(("decode", f"{(num_output - 1) / decode_s:,.1f} tokens/s"))
    if metrics.num_preemptions:
        rows.append(("preempted", f"{metrics.num_preemptions} times"))
    return rows


def timing_rows(before_s: float, phases: Mapping[str, float], first_token_s: float | None) -> list[tuple[str, str]]:
    """Start-up by phase, in seconds: age of the process when loading began, the phases, TTFT of the first answer."""
    rows = [("python and command line", f"{before_s:.3f} s")]
    rows += [(phase, f"{seconds:.3f} s") for phase, seconds in phases.items()]
    if first_token_s is not None:
        rows.append(("first token", f"{first_token_s:.3f} s"))
        rows.append(("process start to first token", f"{before_s + sum(phases.values()) + first_token_s:.3f} s"))
    return rows


def stats_rows(stats: EngineStats) -> list[tuple[str, str]]:
    """What the engine did since it started."""
    blocks, pool = stats.blocks, stats.pool
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in stats.finished.items()) or "none"
    modes = ", ".join(f"{count:,} by {mode}" for mode, count in stats.preemptions.items() if count) or "none"
    found = f" ({blocks.prefix_hits / blocks.prefix_queries:.1%})" if blocks.prefix_queries else ""
    tokens = f"{stats.num_prompt:,} of prompts, {stats.num_generated:,} generated, {stats.num_computed:,} computed"
    used = f"{pool.peak_blocks:,} of {blocks.total:,} at most ({pool.peak_blocks / max(1, blocks.total):.1%})"
    saved = f"{pool.saved_share:.1%} on average, {pool.peak_saved_blocks:,} at most ({pool.peak_saved_share:.1%})"
    return [
        ("answers", reasons),
        ("tokens", tokens),
        ("speed", _speed(stats)),
        ("TTFT", _milliseconds(stats.ttft)),
        ("TPOT", _milliseconds(stats.tpot)),
        ("KV blocks", f"{used}, {pool.mean_blocks:,.1f} on average"),
        ("saved by sharing", f"{saved} of the blocks it would take without"),
        ("empty slots", f"{pool.waste_share:.1%} of the sequences' slots, on average"),
        ("prefix cache", f"{blocks.prefix_hits:,} of {blocks.prefix_queries:,} tokens found{found}"),
        ("copies", f"{blocks.num_copies:,} blocks copied on write, {blocks.num_evictions:,} cached ones overwritten"),
        ("preemptions", modes),
    ]


def _speed(stats: EngineStats) -> str:
    steps = f"{stats.num_steps:,} steps"
    if not stats.busy_s:
        return steps
    return f"{stats.num_generated / stats.busy_s:,.1f} tokens/s generated, in {steps} of {stats.busy_s:,.2f} s together"


def _milliseconds(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "unknown"
    return f"{1000 * quantiles.p50:,.1f} ms median, {1000 * quantiles.p95:,.1f} ms at the 95th percentile"
