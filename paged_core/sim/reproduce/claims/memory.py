"""Claims about memory: what fills the pool, what is wasted, how many requests fit (paper, Fig. 2 and 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.sim.reproduce.claims.claim import LENGTHS, RATES, Claim
from paged_core.sim.reproduce.setup import NAMES, Kind, Setup
from paged_core.sim.reproduce.tasks import At
from paged_core.sim.reproduce.verdict import Interval, Relative, Row, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.measure import Measured
    from paged_core.sim.reproduce.tasks import Size, Task

IN_FIGURE: tuple[Kind, ...] = ("max", "pow2", "oracle", "vllm")
SPLIT: Mapping[Kind, tuple[float, float, float, float]] = {  # token, reserved, internal, other: % of the pool
    "max": (20.4, 13.3, 57.3, 8.9),
    "pow2": (26.8, 17.9, 13.6, 41.6),
    "oracle": (38.2, 25.2, 0.0, 36.6),
}
PARTS = ("token states", "reserved", "internal", "external and other")
VLLM_TOKEN = 96.3
_NOISE_POINTS = 2.0
"""Of a part of the split: traces of ten minutes differ by so much (internal of Pow2: standard deviation 1.3 points)."""
BATCHED: Mapping[str, Mapping[Kind, float]] = {
    "sharegpt": {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "vllm": 30.42},
    "alpaca": {"max": 7.00, "pow2": 43.24, "oracle": 72.75, "vllm": 132.44},
}
OVER: tuple[Kind, ...] = ("oracle", "max")
"""Systems that the paper holds its number of batched requests against: 2.2 and 4.3 times as many, rounded."""


def setups(lengths: str) -> dict[Kind, Setup]:
    """The four systems of Fig. 2 and 13."""
    return {kind: Setup(kind, lengths=lengths) for kind in IN_FIGURE}


def split(run: Measured) -> tuple[float, float, float, float]:
    """Percent of the pool, in the order of `PARTS`."""
    return 100 * run.token, 100 * run.reserved, 100 * run.internal, 100 * run.other


def _tasks(lengths: str) -> list[Task]:
    return [At(setup, RATES[lengths]) for setup in setups(lengths).values()]


def _sharegpt(size: Size) -> list[Task]:
    return _tasks("sharegpt")


def _alpaca(size: Size) -> list[Task]:
    return _tasks("alpaca")


def _runs(found: Found, lengths: str) -> dict[Kind, Measured]:
    return {kind: found.at(setup, RATES[lengths]) for kind, setup in setups(lengths).items()}


def _states(found: Found) -> list[Row]:
    """H1."""
    runs, share = _runs(found, "sharegpt"), found.size.relative
    return [
        Row(
            "H1",
            f"KV memory that holds tokens, {NAMES[kind]}",
            shown(paper[0], "%"),
            100 * runs[kind].token,
            "%",
            Relative(paper[0], share),
            required=True,
        )
        for kind, paper in SPLIT.items()
    ]


def _split(found: Found) -> list[Row]:
    """H2, but for the token states of the baselines, which are H1."""
    runs, share = _runs(found, "sharegpt"), found.size.relative
    rows = [
        Row(
            "H2",
            f"{part}, {NAMES[kind]}",
            shown(paper, "%"),
            ours,
            "%",
            Relative(paper, share, _NOISE_POINTS),
            required=True,
        )
        for kind, papers in SPLIT.items()
        for part, paper, ours in zip(PARTS[1:], papers[1:], split(runs[kind])[1:], strict=True)
        if paper
    ]
    tolerance = Relative(VLLM_TOKEN, share)
    ours = 100 * runs["vllm"].token
    return [*rows, Row("H2", "token states, vLLM", shown(VLLM_TOKEN, "%"), ours, "%", tolerance, required=True)]


def _waste(found: Found) -> list[Row]:
    """H3."""
    runs, share = _runs(found, "sharegpt"), found.size.relative
    old = [
        Row("H3", f"waste, {NAMES[kind]}", "60-80 %", 100 * (1 - runs[kind].token), "%", Interval(60, 80, share))
        for kind in SPLIT
    ]
    tail = Row("H3", "waste in last blocks, vLLM", "< 4 %", 100 * runs["vllm"].tail, "%", Interval(0, 4))
    return [*old, tail]


def _batched(found: Found, claim: str, lengths: str, *, required: bool) -> list[Row]:
    runs = _runs(found, lengths)
    return [
        Row(
            claim,
            f"batched requests, {LENGTHS[lengths]}, {NAMES[kind]}",
            f"{paper:.2f}",
            runs[kind].batched,
            "",
            Relative(paper, found.size.relative),
            required=required,
        )
        for kind, paper in BATCHED[lengths].items()
    ]


def _sharegpt_batched(found: Found) -> list[Row]:
    """H4."""
    runs = _runs(found, "sharegpt")
    told = BATCHED["sharegpt"]
    ratios = []
    for kind in OVER:
        paper, ours = told["vllm"] / told[kind], runs["vllm"].batched / runs[kind].batched
        what, tolerance = f"batched requests, vLLM over {NAMES[kind]}", Relative(paper, found.size.relative)
        ratios.append(Row("H4", what, shown(paper, "x"), ours, "x", tolerance, required=True))
    return _batched(found, "H4", "sharegpt", required=True) + ratios


def _alpaca_batched(found: Found) -> list[Row]:
    """H5."""
    return _batched(found, "H5", "alpaca", required=False)


CLAIMS = (
    Claim(
        "H1",
        "Baselines fill little of their memory with tokens",
        "OPT-13B, ShareGPT, 2 req/s (Fig. 2)",
        _sharegpt,
        _states,
    ),
    Claim(
        "H2",
        "Where the rest of the memory goes",
        "as H1; parts under 20 % are held to the 2 points by which traces differ",
        _sharegpt,
        _split,
    ),
    Claim("H3", "Waste: 60-80 % before, under 4 % with paging", "as H1; figures of the launch blog", _sharegpt, _waste),
    Claim("H4", "Batched requests, ShareGPT", "OPT-13B, 2 req/s (Fig. 13a)", _sharegpt, _sharegpt_batched),
    Claim("H5", "Batched requests, Alpaca", "OPT-13B, 30 req/s (Fig. 13b)", _alpaca, _alpaca_batched),
)
