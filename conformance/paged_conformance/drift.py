"""Drift: how often greedy tokens change when the engine does the same work in another way.

    python -m paged_conformance.drift --model smollm2-135m --prompts prompts.jsonl [--attn A --attn B] [--json FILE]

The same prompts run through every setting (backend, element type, block size, mix, preemption) and are compared with
one reference: the first backend, float32, each prompt alone, no prefix cache. In float32 nothing may flip (law 15):
a first difference where the reference's two best logits lie within 1e-3 is a tie and reported apart, at most 2 % of the
sequences; a flip at a larger gap ends the program with code 1. In bfloat16 and float16 flips are counted, not judged.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paged_conformance.drift_runs import (
    MIXES,
    PREEMPTIONS,
    Setting,
    Task,
    fitting_backends,
    load_task,
    run,
    run_reference,
)
from paged_conformance.flips import Comparison, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paged_core.engine.metrics import EngineStats


@dataclass(slots=True)
class Report:
    """Settings and how they compare; `num_preemptions` by setting."""

    num_prompts: int
    num_tokens: int
    rows: list[tuple[Setting, Comparison, int]] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Float32 settings that flip at a real gap, or tie too often; in words."""
        found = []
        for setting, comparison, _ in self.rows:
            if setting.dtype == "float32" and (why := comparison.failure()) is not None:
                found.append(f"{setting}: {why}")
        return found

    def table(self) -> str:
        """One line a setting, as a Markdown table."""
        head = "| backend | dtype | block | mix | preempted | flips | ties | rate, 95 % interval | first | median |"
        lines = [head, "|---|---|---:|---|---|---:|---:|---|---:|---:|"]
        for setting, result, num_preempted in self.rows:
            low, high = result.interval()
            preempted = f"{num_preempted} x {setting.preempt}" if setting.preempt != "none" else "none"
            first = "-" if result.first is None else str(result.first)
            median = "-" if result.median is None else f"{result.median:g}"
            rate = f"{result.rate:.1%} ({low:.1%} .. {high:.1%})"
            lines.append(
                f"| {setting.attn} | {setting.dtype} | {setting.block_size} | {setting.mix} | {preempted} "
                f"| {len(result.flips)} | {len(result.ties)} | {rate} | {first} | {median} |"
            )
        return "\n".join(lines)

    def as_json(self) -> str:
        """Everything, flips with their positions and gaps."""
        rows = [
            {**asdict(setting), "preemptions": num_preempted, **comparison.as_dict()}
            for setting, comparison, num_preempted in self.rows
        ]
        return json.dumps(
            {"prompts": self.num_prompts, "tokens": self.num_tokens, "rows": rows, "failures": self.failures}, indent=1
        )


def settings_of(
    attns: Iterable[str],
    dtypes: Iterable[str],
    block_sizes: Iterable[int],
    mixes: Iterable[str],
    preempts: Sequence[str],
) -> list[Setting]:
    """The product. One prompt alone is never preempted, so those two do not meet."""
    every = itertools.product(attns, dtypes, block_sizes, mixes, preempts)
    return [Setting(*each) for each in every if each[3] != "alone" or each[4] == "none"]


def measure(task: Task, settings: Sequence[Setting]) -> Report:
    """Run the reference and every setting. The reference's backend is that of the first setting."""
    reference = run_reference(task, settings[0].attn)
    report = Report(len(task.prompts), task.num_tokens)
    peaks: dict[tuple[int, str], int] = {}
    for setting in settings:
        shape = (setting.block_size, setting.mix)
        if setting.preempt != "none" and shape not in peaks:
            _, stats = run(task, replace(setting, preempt="none"), None)
            peaks[shape] = stats.peak_blocks
        tokens, stats = run(task, setting, peaks.get(shape))
        _note_peak(peaks, setting, stats)
        comparison = compare(reference, tokens, judge_ties=setting.dtype == "float32")
        report.rows.append((setting, comparison, sum(stats.preemptions.values())))
        print(f"{len(report.rows)}/{len(settings)} {setting}: {len(comparison.flips)} flips", file=sys.stderr)
    return report


def _note_peak(peaks: dict[tuple[int, str], int], setting: Setting, stats: EngineStats) -> None:
    if setting.preempt == "none":
        peaks.setdefault((setting.block_size, setting.mix), stats.peak_blocks)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 1 on a float32 flip at a real gap or on too many ties."""
    options = _parser().parse_args(arguments)
    task = load_task(options.model, Path(options.prompts), options.count, options.tokens)
    attns = options.attn or fitting_backends(task)
    settings = settings_of(attns, options.dtype, options.block_size, options.mix, options.preempt)
    report = measure(task, settings)
    print(
        f"{task.model}: {report.num_prompts} prompts, {report.num_tokens} greedy tokens each; reference: {attns[0]}, "
        f"float32, block 16, alone\n\n{report.table()}"
    )
    if options.json:
        Path(options.json).write_text(report.as_json(), encoding="utf-8")
    for failure in report.failures:
        print(f"law 15 is broken: {failure}")
    return 1 if report.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_conformance.drift", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", required=True, help="as for paged-core run")
    parser.add_argument(
        "--prompts",
        required=True,
        metavar="FILE",
        help='JSON lines with "turns" (the first is used), "prompt", "text" or "messages"',
    )
    parser.add_argument("--count", type=int, default=50, help="how many prompts of the file (50)")
    parser.add_argument("--tokens", type=int, default=64, help="greedy tokens of each answer (64)")
    parser.add_argument(
        "--attn", action="append", default=[], metavar="NAME", help="a backend; repeatable (all that fit)"
    )
    for name, kind, choices, default in (
        ("dtype", str, ("float32", "bfloat16", "float16"), ["float32", "bfloat16"]),
        ("block-size", int, None, [16]),
        ("mix", str, MIXES, list(MIXES)),
        ("preempt", str, PREEMPTIONS, list(PREEMPTIONS)),
    ):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            type=kind,
            choices=choices,
            default=default,
            help=f"one or several ({' '.join(map(str, default))})",
        )
    parser.add_argument("--json", metavar="FILE", help="write every flip with its position and gap")
    return parser


if __name__ == "__main__":
    sys.exit(main())
