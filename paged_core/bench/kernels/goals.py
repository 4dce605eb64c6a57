"""Goals of `bench kernels`, met or missed: one decode's on a CPU, the worst of the large cases' on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.bench.kernels.cases import GOAL_CASE
from paged_core.bench.kernels.tables import memory_share, product_share
from paged_core.bench.report import Column, Table, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.bench.kernels.reading import Reading
    from paged_core.bench.peaks import Peaks
    from paged_core.bench.site import Site

READ_GOAL, U8_GOAL = 0.75, 1.6
"""On a CPU, of the decode of `GOAL_CASE`: share of read bandwidth in bfloat16, and times its speed with uint8."""
COPY_GOAL, MATMUL_GOAL, RATIO_GOAL = 0.85, 0.60, 1.05
"""On a GPU: share of copy bandwidth of decodes, of the product rate of prefills, and paged over contiguous, at most."""
LARGE_BYTES, LARGE_TOKENS = 64_000_000, 2048
"""Keys and values from which a decode, and new tokens from which a prefill, has goals."""
_COLUMNS = (
    Column("what", "what"),
    Column("cases", "cases"),
    Column("value", "worst", ".2f"),
    Column("best", "best", ".2f"),
    Column("goal", "goal", ".2f"),
    Column("verdict", "verdict"),
    Column("where", "worst at"),
)
_Valued = list[tuple[float, str]]


def goal_tables(readings: Sequence[Reading], peaks: Peaks, site: Site) -> list[Table]:
    """Goals of this kind of device that the readings can tell about. None without any."""
    table = Table("Goals", _COLUMNS)
    if site.kind == "cuda":
        _gpu(table, readings, peaks, site)
    else:
        _cpu(table, readings, peaks, site)
    return [table] if table.rows else []


def _cpu(table: Table, readings: Sequence[Reading], peaks: Peaks, site: Site) -> None:
    found = {one.backend.kv_dtype: one for one in readings if one.case == GOAL_CASE}
    if "bfloat16" not in found:
        return
    share = memory_share(found["bfloat16"], peaks, site)
    table.add(f"{GOAL_CASE}, bfloat16: share of read bandwidth", *_judged([(share, "")], READ_GOAL))
    if "uint8" in found:
        times = found["bfloat16"].seconds.median / found["uint8"].seconds.median
        table.add("the same, uint8: times as fast as bfloat16", *_judged([(times, "")], U8_GOAL))


def _gpu(table: Table, readings: Sequence[Reading], peaks: Peaks, site: Site) -> None:
    decodes = [
        one for one in readings if one.case.kind == "decode" and one.case.kv_bytes(one.backend.kv_dtype) >= LARGE_BYTES
    ]
    prefills = [
        one for one in readings if one.case.kind == "prefill" and one.case.sequences * one.case.new >= LARGE_TOKENS
    ]
    bf16 = [one for one in prefills if one.backend.kv_dtype == "bfloat16"]
    shares = [(memory_share(one, peaks, site), _name(one)) for one in decodes]
    table_rows = [
        ("decode of 64 MB of KV or more: share of copy bandwidth", shares, COPY_GOAL, 1),
        (
            f"prefill of {LARGE_TOKENS:,} tokens or more, bfloat16: share of the product rate",
            [(product_share(one, peaks, site), _name(one)) for one in bf16],
            MATMUL_GOAL,
            1,
        ),
        ("the same decodes: paged over contiguous, at most", _ratios(decodes), RATIO_GOAL, -1),
        ("the same prefills, all types: paged over contiguous, at most", _ratios(prefills), RATIO_GOAL, -1),
    ]
    for what, valued, goal, sign in table_rows:
        if valued:
            table.add(what, *_judged(valued, goal, sign))


def _ratios(readings: Sequence[Reading]) -> _Valued:
    return [
        (one.seconds.median / one.rivals["contiguous"].median, _name(one))
        for one in readings
        if "contiguous" in one.rivals
    ]


def _name(one: Reading) -> str:
    return f"{one.case}, {one.backend.kv_dtype}, blocks of {one.backend.block_size}"


def _judged(valued: _Valued, goal: float, sign: int = 1) -> tuple[int | float | str | None, ...]:
    """Cells of how many, worst, best, goal, verdict and where; `sign` -1: less is better."""
    ordered = sorted(valued, key=lambda pair: sign * pair[0])
    (worst, where), (best, _) = ordered[0], ordered[-1]
    return len(valued), worst, best, goal, verdict(sign * worst, sign * goal), where
