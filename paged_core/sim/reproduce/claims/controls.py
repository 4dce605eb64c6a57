"""Negative controls: where there is nothing to gain, nothing may be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.sim.reproduce.claims.claim import RATES, Claim
from paged_core.sim.reproduce.claims.rates import alpaca_setups, curve
from paged_core.sim.reproduce.load import EQUAL
from paged_core.sim.reproduce.setup import NAMES, Kind, Setup
from paged_core.sim.reproduce.tasks import At
from paged_core.sim.reproduce.verdict import Interval, Row

if TYPE_CHECKING:
    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.tasks import Size, Task

_NEAR_ONE = 0.1
_EQUAL_KINDS: tuple[Kind, ...] = ("vllm", "oracle")
_SMALLEST = Setup(block_size=1)
_ONE_RATE = RATES["sharegpt"]
_FLOOD = 12.0
"""Requests a second of equal length, more than any system here serves: memory is always full."""


def _equal() -> dict[str, dict[Kind, Setup]]:
    return {lengths: {kind: Setup(kind, lengths=lengths) for kind in _EQUAL_KINDS} for lengths in EQUAL}


def _tasks(size: Size) -> list[Task]:
    curves: list[Task] = [curve(one) for one in alpaca_setups()["opt-175b"].values()]
    floods = [At(one, _FLOOD) for setups in _equal().values() for one in setups.values()]
    return [*curves, *floods, At(_SMALLEST, _ONE_RATE)]


def _rows(found: Found) -> list[Row]:
    slack = Interval(1, 1, max(_NEAR_ONE, found.size.relative))
    ample = alpaca_setups()["opt-175b"]
    rows = [
        Row(
            "control",
            f"ample memory (OPT-175B's slots, Alpaca): rate of vLLM over {NAMES[kind]}",
            "near 1",
            found.ratio(ample["vllm"], ample[kind]),
            "x",
            slack,
            required=True,
        )
        for kind in ample
        if kind != "vllm"
    ]
    for lengths, (prompt, output) in EQUAL.items():
        setups = _equal()[lengths]
        total = prompt + output
        rounded = 1 << (total - 1).bit_length()
        expected = rounded / total
        rows.append(
            Row(
                "control",
                f"all requests {prompt} + {output} tokens, reserved as {rounded}: batched, vLLM over Orca (Oracle)",
                f"{expected:.2f}x",
                found.at(setups["vllm"], _FLOOD).batched / found.at(setups["oracle"], _FLOOD).batched,
                "x",
                Interval(expected, expected, slack.slack),
                required=True,
            )
        )
    tail = 100 * found.at(_SMALLEST, _ONE_RATE).tail
    return [*rows, Row("control", "waste in last blocks, blocks of 1", "0 %", tail, "%", Interval(0, 0), required=True)]


CLAIMS = (
    Claim(
        "control",
        "Where there is nothing to gain, nothing is found",
        "memory for more requests than computing has use for (Orca (Pow2) holds 170, the others come to the limit of "
        "256 sequences); requests without spread; blocks of one token",
        _tasks,
        _rows,
    ),
)
