"""The tables of `bench peers`: all engines, ours over each peer beside the goals, ours against the floor, agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.bench.peers import NOISE
from paged_core.bench.report import Column, Table, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paged_core.bench.peers import Runs

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: the figure of a result that measures it, and whether less of it is better."""

    name: str
    key: str
    seconds: bool

    def gain(self, runs: Runs, other: float) -> float:
        """How many times faster `runs` is than `other`, a figure of the same key."""
        value = runs.median(self.key)
        return other / value if self.seconds else value / other


MIXED = Work("all requests at once", "mixed_s", seconds=True)
DECODE = Work("decode, one sequence", "decode_per_s", seconds=False)
PREFILL = Work("prefill of 512 tokens", "first_s", seconds=True)
WORKS = (MIXED, DECODE, PREFILL)

GOALS = {
    (MIXED, "OpenVINO GenAI bf16"): 1.3,
    (MIXED, "vLLM bf16, bound"): 1.4,
    (MIXED, "OpenVINO GenAI int8"): 1.4,
    (MIXED, "llama.cpp int8"): 3.0,
    (DECODE, "llama.cpp int8"): 1.0,
    (PREFILL, "OpenVINO GenAI bf16"): 1.2,
    (PREFILL, "OpenVINO GenAI int8"): 1.2,
    (PREFILL, "vLLM bf16, bound"): 1.2,
}
"""How many times the speed of a peer ours is meant to have."""
FLOOR_GOALS = {
    (MIXED, "bf16"): 0.6,
    (DECODE, "bf16"): 0.8,
    (DECODE, "int8"): 0.75,
    (PREFILL, "bf16"): 0.7,
    (PREFILL, "int8"): 0.7,
}
"""Which share of the floor ours is meant to reach."""
_START = 16


def tables(runs: Sequence[Runs]) -> list[Table]:
    """All tables of a contest. Those who failed are named under the first."""
    played = [one for one in runs if one.results]
    own = [one for one in played if one.contestant.driver == "ours"]
    peers = [one for one in played if one.contestant.driver != "ours"]
    pairs = [(one, peer) for peer in peers for one in own if one.contestant.precision == peer.contestant.precision]
    return [engines_table(runs), ratios_table(pairs), floors_table(own), agreement_table(pairs), runs_table(played)]


def engines_table(runs: Sequence[Runs]) -> Table:
    """Medians of every engine."""
    columns = (
        Column("engine", "engine"),
        Column("version", "version"),
        Column("mixed_s", "mixed s", ".1f"),
        Column("output_per_s", "output tok/s", ".0f"),
        Column("decode_per_s", "alone tok/s", ".0f"),
        Column("first_ms", "first token of 512 ms", ".0f"),
        Column("prefill_per_s", "prefill 32 x 128 tok/s", ",.0f"),
        Column("load_s", "load s", ".1f"),
        Column("peak_mib", "peak MiB", ",.0f"),
        Column("runs", "runs"),
        Column("others", "others", ".1%"),
    )
    table = Table("Engines side by side", columns)
    for one in runs:
        if not one.results:
            continue
        mixed, peak = one.median("mixed_s"), one.results[-1]["peak_bytes"]
        speeds = (one.median("decode_per_s"), one.median("first_s") * 1e3, one.median("prefill_per_s"))
        memory = None if peak is None else one.median("peak_bytes") / _MIB
        row = (one.contestant.name, one.results[-1]["engine"], mixed, one.median("output_tokens") / mixed, *speeds)
        table.add(*row, one.median("load_s"), memory, _counted(one), one.noise)
    table.notes += [
        "Medians, greedy, end of sequence ignored, no prefix cache. Others: share of the machine that other processes",
        f"used in the noisiest phase; runs with more than {NOISE:.0%} are left out while there is a quiet one.",
        "Peak: sum over the processes of an engine, model file, cache and libraries included.",
    ]
    table.notes += [f"Not measured: {one.failure}" for one in runs if one.failure is not None]
    return table


def _counted(runs: Runs) -> str:
    """`2`, or `2 of 3` when noisy ones were left out, or `3 noisy`."""
    total, kept = len(runs.results), len(runs.quiet)
    if runs.flagged == total:
        return f"{total} noisy"
    return str(total) if kept == total else f"{kept} of {total}"


def ratios_table(pairs: Sequence[tuple[Runs, Runs]]) -> Table:
    """How many times faster ours is than each peer with weights of the same precision."""
    columns = (
        Column("work", "work"),
        Column("ours", "ours"),
        Column("peer", "peer"),
        Column("ratio", "times faster", ".2f"),
        Column("goal", "goal", ".1f"),
        Column("verdict", "verdict"),
    )
    table = Table("Ours over each peer", columns)
    for work in WORKS:
        for own, peer in pairs:
            ratio, goal = work.gain(own, peer.median(work.key)), GOALS.get((work, peer.contestant.name))
            table.add(work.name, own.contestant.name, peer.contestant.name, ratio, goal, verdict(ratio, goal))
    measured = {peer.contestant.name for _, peer in pairs}
    open_goals = [f"{work.name}, {peer} ({goal:g})" for (work, peer), goal in GOALS.items() if peer not in measured]
    if open_goals:
        table.notes.append(f"Goals that nobody here was measured for: {'; '.join(open_goals)}.")
    return table


def floors_table(mine: Sequence[Runs]) -> Table:
    """Ours against the least that the same schedule can cost at the peaks of this machine."""
    columns = (
        Column("work", "work"),
        Column("ours", "ours"),
        Column("floor", "floor", ",.3g"),
        Column("measured", "measured", ",.3g"),
        Column("share", "of floor", ".0%"),
        Column("goal", "goal", ".0%"),
        Column("verdict", "verdict"),
    )
    table = Table("Ours against the floor", columns)
    for work in WORKS:
        for own in mine:
            floor = own.floor(work.key)
            if floor is None:
                continue
            share, goal = work.gain(own, floor), FLOOR_GOALS.get((work, own.contestant.precision))
            row = (f"{work.name}, {'s' if work.seconds else 'tok/s'}", own.contestant.name, floor)
            table.add(*row, own.median(work.key), share, goal, verdict(share, goal))
    table.notes.append("Floor: this schedule at the peaks measured after each of our runs.")
    return table


def agreement_table(pairs: Sequence[tuple[Runs, Runs]]) -> Table:
    """How far greedy answers agree with ours: information, since rounding differs and prompts may be anything."""
    columns = (
        Column("peer", "peer"),
        Column("ours", "ours"),
        Column("requests", "requests"),
        Column("first", "first token equal"),
        Column("start", f"first {_START} equal"),
        Column("whole", "whole answer equal"),
    )
    table = Table("Agreement of greedy answers", columns)
    for own, peer in pairs:
        answers = list(_answers(own, peer))
        counts = [sum(a[:n] == b[:n] for a, b in answers) for n in (1, _START, None)]
        table.add(peer.contestant.name, own.contestant.name, len(answers), *counts)
    return table


def _answers(own: Runs, peer: Runs) -> Iterator[tuple[Any, Any]]:
    return zip(own.results[-1]["tokens"], peer.results[-1]["tokens"], strict=True)


def runs_table(runs: Sequence[Runs]) -> Table:
    """Every run, with the noise around it."""
    columns = (
        Column("engine", "engine"),
        Column("run", "run"),
        Column("mixed_s", "mixed s", ".2f"),
        Column("decode_per_s", "alone tok/s", ".1f"),
        Column("first_ms", "first token of 512 ms", ".1f"),
        Column("others_mixed", "others, mixed", ".1%"),
        Column("others_single", "others, single", ".1%"),
    )
    table = Table("Every run", columns)
    for one in runs:
        for i, result in enumerate(one.results):
            row = (one.contestant.name, i + 1, result["mixed_s"], result["decode_per_s"], result["first_s"] * 1e3)
            table.add(*row, result["others"]["mixed"], result["others"]["single"])
    return table
