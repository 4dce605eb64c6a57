"""The tables of `bench attention`: decodes and prefills beside their floors, and the goals of one decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.bench.attention import GOAL_CASE, ROTATION, Case, activations, declared, read
from paged_core.bench.report import Column, Table, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from paged_core.bench.attention import Choice
    from paged_core.bench.peaks import Peaks
    from paged_core.bench.report import Cell
    from paged_core.bench.timing import Measurement
    from paged_core.plugins import Plugins

READ_GOAL, U8_GOAL = 0.75, 1.6
"""Of the decode of `GOAL_CASE`: share of read bandwidth in bfloat16, and how many times its speed with uint8."""
_COLUMNS = (
    Column("sequences", "sequences", ","),
    Column("context", "context", ","),
    Column("heads", "heads"),
    Column("kv_dtype", "KV"),
    Column("us", "us / layer", ",.0f"),
    Column("kv_gb_per_s", "KV GB/s", ".1f"),
    Column("gop_per_s", "Gop/s", ".0f"),
    Column("read_share", "of read peak", ".0%"),
    Column("share", "of floor", ".0%"),
    Column("spread", "spread", ".0%"),
    Column("plugin", "plugin"),
)


def attention_tables(
    plugins: Plugins, cases: Iterable[Case], choice: Choice, peaks: Peaks, say: Callable[[str], None]
) -> list[Table]:
    """Decodes by the bytes they read, prefills by the operations they do, both as a share of the floor; and the goals
    of `GOAL_CASE` where it is among the cases."""
    tables = {kind: Table(f"Attention, {kind}", _COLUMNS, notes=_notes(choice)) for kind in ("decode", "prefill")}
    goals: list[Table] = []
    for case in cases:
        named, kv_dtypes = declared(plugins, case.heads, choice)
        say(f"{case.kind}, {case.sequences} x {case.context}, {case.heads}, {', '.join(kv_dtypes)}")
        found = read(plugins, case, kv_dtypes, named)
        for kv_dtype, (plugin, seconds) in found.items():
            row = _row(case, kv_dtype, seconds, peaks)
            tables[case.kind].add(case.sequences, case.context, str(case.heads), kv_dtype, *row, plugin)
        if case == GOAL_CASE:
            medians = {kv_dtype: seconds.median for kv_dtype, (_, seconds) in found.items()}
            goals = goals_tables(medians, peaks)
    return [table for table in tables.values() if table.rows] + goals


def _row(case: Case, kv_dtype: str, seconds: Measurement, peaks: Peaks) -> tuple[Cell, ...]:
    taken, num_bytes = seconds.median, case.kv_bytes(kv_dtype)
    read_s = num_bytes / peaks.read_bytes
    floor = max(read_s, case.ops / peaks.rate(activations(kv_dtype)))
    rates = (num_bytes / taken / 1e9, case.ops / taken / 1e9)
    return taken * 1e6, *rates, read_s / taken, floor / taken, seconds.spread


def goals_tables(seconds: Mapping[str, float], peaks: Peaks) -> list[Table]:
    """Goals of `GOAL_CASE` met and missed, from seconds a layer by type of the cache. None without bfloat16."""
    columns = (
        Column("what", "what"),
        Column("value", "value", ".2f"),
        Column("goal", "goal", ".2f"),
        Column("verdict", "verdict"),
    )
    if "bfloat16" not in seconds:
        return []
    table = Table(f"Goals of decode, {GOAL_CASE.sequences} x {GOAL_CASE.context:,}, {GOAL_CASE.heads}", columns)
    share = GOAL_CASE.kv_bytes("bfloat16") / peaks.read_bytes / seconds["bfloat16"]
    table.add("bfloat16, share of read bandwidth", share, READ_GOAL, verdict(share, READ_GOAL))
    if "uint8" in seconds:
        times = seconds["bfloat16"] / seconds["uint8"]
        table.add("uint8, times as fast as bfloat16", times, U8_GOAL, verdict(times, U8_GOAL))
    return [table]


def _notes(choice: Choice) -> list[str]:
    return [
        f"Medians of {choice.rounds} rounds, {choice.clock} time, in turns; blocks of {choice.block_size}, scattered.",
        f"Layers take turns over {ROTATION >> 20} MiB of keys and values. Floor: those of one layer read once at the",
        "peak of reading, or both products at the peak of the queries' element type, whichever takes longer.",
        "Beside a cache of uint8, queries are bfloat16 where the processor has it; its bytes include steps and minima.",
    ]
