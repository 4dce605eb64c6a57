"""Claims about the rate that a system serves at equal latency (paper, Fig. 12, 14 and 16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.sim.reproduce.claims.claim import LENGTHS, MODELS, Claim
from paged_core.sim.reproduce.setup import KINDS, NAMES, Kind, Setup
from paged_core.sim.reproduce.tasks import Curve
from paged_core.sim.reproduce.verdict import Interval, Relative, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.tasks import Size, Task

KNEES: Mapping[tuple[str, str], Mapping[Kind, float]] = {  # requests a second, read off Fig. 12
    ("opt-13b", "sharegpt"): {"ft": 0.3, "max": 0.5, "pow2": 0.75, "oracle": 1.1, "vllm": 1.9},
    ("opt-13b", "alpaca"): {"ft": 5, "max": 7, "pow2": 13, "oracle": 20, "vllm": 28},
    ("opt-66b", "sharegpt"): {"ft": 0.1, "max": 0.2, "pow2": 0.4, "oracle": 0.65, "vllm": 0.95},
    ("opt-175b", "sharegpt"): {"ft": 0.5, "max": 1.0, "pow2": 1.5, "oracle": 1.8, "vllm": 2.4},
}
OVER: Mapping[Kind, Interval] = {"oracle": Interval(1.7, 2.7), "max": Interval(2.7, 8), "ft": Interval(4.8, 22)}
"""Rate of vLLM over that of others. The text says "up to 22x" of the last; its lower end is read off Fig. 12c."""
COMPUTE_BOUND: tuple[Kind, ...] = ("oracle", "pow2")
BEAMS = {"basic": (1, 1.3), "beam": (6, 2.3)}
"""Width, and the rate of vLLM over that of Orca (Oracle), OPT-13B on Alpaca."""
PREFIX = {"translation-1": (80, 1.67), "translation-5": (341, 3.58)}
"""Tokens of the shared prefix, and throughput of vLLM over Orca (Oracle), LLaMA-13B."""
_ELSEWHERE: Mapping[str, float] = {"sharegpt": 1.6, "alpaca": 20.0, "translation-1": 16.0, "translation-5": 8.0}
_LONG_PREFIX = 100


def curve(setup: Setup) -> Curve:
    """The curve of a system, tried first somewhat below the paper's knee, or anywhere where the paper shows none."""
    knee = KNEES.get((setup.model, setup.lengths), {}).get(setup.kind) if setup.mode == "basic" else None
    return Curve(setup, 0.8 * knee if knee else _ELSEWHERE[setup.lengths])


def panel(model: str, lengths: str) -> dict[Kind, Setup]:
    """The systems of one panel of Fig. 12."""
    return {kind: Setup(kind, model, lengths) for kind in KINDS}


def panels(size: Size) -> list[tuple[str, str]]:
    """Panels of Fig. 12 that H6 needs, by model and lengths."""
    return [("opt-13b", "sharegpt")] + ([] if size.quick else [("opt-66b", "sharegpt"), ("opt-175b", "sharegpt")])


def others(size: Size) -> list[Kind]:
    """Systems that H6 holds vLLM against."""
    return [kind for kind in OVER if kind != "ft" or not size.quick]


def _panel_tasks(size: Size) -> list[Task]:
    kinds = ["vllm", *others(size)] if size.quick else KINDS
    return [curve(panel(*names)[kind]) for names in panels(size) for kind in kinds]


def _over_others(found: Found) -> list[Row]:
    """H6."""
    rows = []
    for model, lengths in panels(found.size):
        setups = panel(model, lengths)
        for kind in others(found.size):
            told = OVER[kind]
            rows.append(
                Row(
                    "H6",
                    f"rate of vLLM over {NAMES[kind]}, {MODELS[model]}, {LENGTHS[lengths]}",
                    "up to 22x" if kind == "ft" else f"{told.low}-{told.high}x",
                    found.ratio(setups["vllm"], setups[kind]),
                    "x",
                    Interval(told.low, told.high, found.size.relative),
                    required=kind != "ft" and "175" not in model,
                )
            )
    return rows


def alpaca_setups() -> dict[str, dict[Kind, Setup]]:
    """vLLM and the two Orcas that come nearest, where memory is short and where it is not."""
    kinds: tuple[Kind, ...] = ("vllm", *COMPUTE_BOUND)
    return {model: {kind: Setup(kind, model, "alpaca") for kind in kinds} for model in ("opt-13b", "opt-175b")}


def _alpaca_tasks(size: Size) -> list[Task]:
    tasks: list[Task] = []
    for model, setups in alpaca_setups().items():
        tasks += [curve(one) for one in setups.values()]
        if model == "opt-13b" and not size.quick:  # the other two systems of Fig. 12d, for the picture
            tasks += [curve(Setup(kind, model, "alpaca")) for kind in KINDS if kind not in setups]
    return tasks


def _shrinks(found: Found) -> list[Row]:
    """H7."""
    rows = []
    setups = alpaca_setups()
    for kind in COMPUTE_BOUND:
        short, ample = (found.ratio(one["vllm"], one[kind]) for one in setups.values())
        rows += [
            Row("H7", f"rate of vLLM over {NAMES[kind]}, OPT-13B, Alpaca", "", short, "x"),
            Row("H7", f"rate of vLLM over {NAMES[kind]}, OPT-175B (roofline), Alpaca", "", ample, "x"),
            Row(
                "H7",
                f"the latter over the former, {NAMES[kind]}",
                "below 1",
                ample / short,
                "x",
                Interval(0, 1),
            ),
        ]
    return rows


def beam_setups() -> dict[str, dict[Kind, Setup]]:
    """vLLM and Orca (Oracle) with one sequence a request and with the widest beams."""
    kinds: tuple[Kind, ...] = ("vllm", "oracle")
    return {
        "basic": {kind: Setup(kind, lengths="alpaca") for kind in kinds},
        "beam": {kind: Setup(kind, lengths="alpaca", mode="beam", width=BEAMS["beam"][0]) for kind in kinds},
    }


def _beam_tasks(size: Size) -> list[Task]:
    return [curve(one) for setups in beam_setups().values() for one in setups.values()]


def _beams_gain(found: Found) -> list[Row]:
    """H10."""
    rows = []
    for mode, setups in beam_setups().items():
        width, paper = BEAMS[mode]
        what = "one sequence" if mode == "basic" else f"beams of {width}"
        ratio = found.ratio(setups["vllm"], setups["oracle"])
        text = f"rate of vLLM over Orca (Oracle), Alpaca, {what}"
        rows.append(Row("H10", text, f"{paper}x", ratio, "x", Relative(paper, found.size.relative)))
    return rows


def prefix_setups(size: Size) -> dict[str, dict[Kind, Setup]]:
    """vLLM with the prefix cache on and Orca (Oracle), translating behind a prefix."""
    kinds: tuple[Kind, ...] = ("vllm", "oracle")
    wanted = [lengths for lengths, (tokens, _) in PREFIX.items() if tokens > _LONG_PREFIX or not size.quick]
    return {lengths: {kind: Setup(kind, "llama-13b", lengths) for kind in kinds} for lengths in wanted}


def _prefix_tasks(size: Size) -> list[Task]:
    return [curve(one) for setups in prefix_setups(size).values() for one in setups.values()]


def _prefix_gain(found: Found) -> list[Row]:
    """H11."""
    rows = []
    for lengths, setups in prefix_setups(found.size).items():
        tokens, paper = PREFIX[lengths]
        ratio = found.ratio(setups["vllm"], setups["oracle"])
        text = f"rate of vLLM over Orca (Oracle), shared prefix of {tokens} tokens"
        rows.append(Row("H11", text, f"{paper}x", ratio, "x", Relative(paper, found.size.relative)))
    return rows


CLAIMS = (
    Claim(
        "H6",
        "More requests a second at equal latency",
        "ShareGPT, three OPT sizes (Fig. 12a-c); 0.5 s a token; the least over FasterTransformer is read off Fig. 12c",
        _panel_tasks,
        _over_others,
    ),
    Claim(
        "H7",
        "Where computing is short and memory is not, the advantage shrinks",
        "OPT-175B, Alpaca (Fig. 12f), roofline costs",
        _alpaca_tasks,
        _shrinks,
    ),
    Claim("H10", "Beams widen the advantage", "OPT-13B, Alpaca (Fig. 12d, 14f)", _beam_tasks, _beams_gain),
    Claim(
        "H11",
        "A shared prefix widens it",
        "LLaMA-13B, WMT16 English to German (Fig. 16); the memory of OPT-13B's row, costs of OPT-13B",
        _prefix_tasks,
        _prefix_gain,
    ),
)
