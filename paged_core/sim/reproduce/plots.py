"""Plots: the paper's figures of the results. Need matplotlib, the extra `bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.bench.plot import new_figure
from paged_core.sim.capacity import LIMIT_S
from paged_core.sim.reproduce.claims import blocks, memory, rates, sharing
from paged_core.sim.reproduce.claims.claim import LENGTHS, MODELS, RATES
from paged_core.sim.reproduce.setup import KINDS, NAMES, Setup
from paged_core.sim.reproduce.tasks import Curve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.setup import Kind

_COLOURS: Mapping[Kind, str] = {
    "vllm": "#1f77b4",
    "oracle": "#2ca02c",
    "pow2": "#ff7f0e",
    "max": "#d62728",
    "ft": "#7f7f7f",
}
_PARTS = ("#1f77b4", "#aec7e8", "#ff9896", "#dddddd")
_TOP_S = 1.0
_DPI = 80


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the paper: name of the file, the claim whose runs it shows, caption, and what draws it."""

    name: str
    claim: str
    caption: str
    draw: Callable[[Found], Figure]


def draw_all(found: Found, folder: Path) -> list[Path]:
    """Write the pictures of all claims that were run, as PNG. The folder is made. ConfigError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in FIGURES:
        if picture.claim in found.only:
            path = folder / f"{picture.name}.png"
            # no date and no version in the file: equal results are equal bytes on one machine
            picture.draw(found).savefig(path, dpi=_DPI, metadata={"Software": None})
            written.append(path)
    return written


def _memory(found: Found) -> Figure:
    """Fig. 2."""
    figure = new_figure((7, 4))
    axes = figure.add_subplot(ylabel="share of the KV pool, %", title="OPT-13B, ShareGPT, 2 req/s")
    runs = {kind: found.at(setup, RATES["sharegpt"]) for kind, setup in memory.setups("sharegpt").items()}
    names = [NAMES[kind] for kind in runs]
    below = [0.0] * len(runs)
    for i, part in enumerate(memory.PARTS):
        shares = [memory.split(run)[i] for run in runs.values()]
        axes.bar(names, shares, 0.6, below, label=part, color=_PARTS[i])
        below = [one + other for one, other in zip(below, shares, strict=True)]
    told = [memory.SPLIT[kind][0] if kind in memory.SPLIT else memory.VLLM_TOKEN for kind in runs]
    axes.plot(names, told, "k_", markersize=30, label="token states, paper")
    figure.legend(fontsize=8, loc="outside right upper")
    return figure


def _batched(found: Found) -> Figure:
    """Fig. 13."""
    figure = new_figure((8, 3.6))
    for place, (lengths, claim) in enumerate((("sharegpt", "H4"), ("alpaca", "H5"))):
        if claim not in found.only:
            continue
        axes = figure.add_subplot(1, 2, place + 1, title=f"{LENGTHS[lengths]}, {RATES[lengths]:g} req/s")
        setups = memory.setups(lengths)
        ours = [found.at(setup, RATES[lengths]).batched for setup in setups.values()]
        told = [memory.BATCHED[lengths][kind] for kind in setups]
        _pairs(axes, [NAMES[kind].removeprefix("Orca ").strip("()") for kind in setups], ours, told)
        axes.set_ylabel("batched requests")
    return figure


def _pairs(axes: Any, names: list[str], ours: list[float], told: Sequence[float | None]) -> None:
    """Our bars beside the paper's; None: it states none."""
    places = range(len(names))
    mine = axes.bar([place - 0.2 for place in places], ours, 0.38, label="ours", color="#1f77b4")
    heights = [one or 0.0 for one in told]
    theirs = axes.bar([place + 0.2 for place in places], heights, 0.38, label="paper", color="#bbbbbb")
    axes.bar_label(mine, [f"{one:.3g}" for one in ours], fontsize=7)
    axes.bar_label(theirs, ["" if one is None else f"{one:.3g}" for one in told], fontsize=7)
    axes.set_xticks(list(places), names, fontsize=8)
    axes.set_ylim(top=1.25 * max(*ours, *heights))
    axes.legend(fontsize=8, loc="upper left")


def _curves(axes: Any, found: Found, setups: Iterable[tuple[str, Setup, str | None]]) -> None:
    """Latency over rate of every (label, setup, colour)."""
    for label, setup, colour in setups:
        points = found.curve(setup)
        rate, latency = [one.rate for one in points], [one.normalized_latency for one in points]
        axes.plot(rate, latency, marker="o", markersize=3, label=label, color=colour)
    axes.axhline(LIMIT_S, color="black", linewidth=0.6, linestyle=":")
    axes.set_ylim(0, _TOP_S)
    axes.set_xlim(left=0)
    axes.set_xlabel("requests a second")
    axes.set_ylabel("s/token")


def _rates(found: Found) -> Figure:
    """Fig. 12: the panels that were run."""
    panels = [("opt-13b", "sharegpt"), ("opt-66b", "sharegpt"), ("opt-175b", "sharegpt")]
    panels += [("opt-13b", "alpaca"), ("opt-175b", "alpaca")]
    figure = new_figure((10, 5.6))
    for place, (model, lengths) in enumerate(panels):
        kinds = [kind for kind in KINDS if Curve(Setup(kind, model, lengths), 0).key in found.runs]
        if kinds:
            axes = figure.add_subplot(2, 3, place + 1, title=f"{MODELS[model]}, {LENGTHS[lengths]}")
            _curves(axes, found, [(NAMES[kind], Setup(kind, model, lengths), _COLOURS[kind]) for kind in kinds])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="lower right", bbox_to_anchor=(0.95, 0.15))
    return figure


def _saved(found: Found) -> Figure:
    """Fig. 15."""
    figure = new_figure((10, 3.4))
    panels = [(mode, lengths) for mode in sharing.PAPER for lengths in sharing.PAPER[mode]]
    for place, (mode, lengths) in enumerate(panels):
        if {"sample": "H8", "beam": "H9"}[mode] not in found.only:
            continue
        axes = figure.add_subplot(1, 4, place + 1, title=f"{LENGTHS[lengths]}, {sharing.WORDS[mode]}")
        widths = sharing.WIDTHS[:1] if found.size.quick else sharing.WIDTHS
        ours = [100 * found.at(sharing.setup(mode, lengths, width), RATES[lengths]).saved for width in widths]
        told = [sharing.PAPER[mode][lengths].get(width) for width in widths]
        _pairs(axes, [str(width) for width in widths], ours, told)
        axes.set_ylabel("blocks saved, %")
    return figure


def _prefix(found: Found) -> Figure:
    """Fig. 16."""
    figure = new_figure((8, 3.4))
    for place, (lengths, setups) in enumerate(rates.prefix_setups(found.size).items()):
        axes = figure.add_subplot(1, 2, place + 1, title=f"shared prefix of {rates.PREFIX[lengths][0]} tokens")
        _curves(axes, found, [(NAMES[kind], setup, _COLOURS[kind]) for kind, setup in setups.items()])
        axes.legend(fontsize=7)
    return figure


def _block_sizes(found: Found) -> Figure:
    """Fig. 18b; the paper draws latency at one rate, here the rate that is served."""
    figure = new_figure((6, 3.6))
    axes = figure.add_subplot(xlabel="block size", ylabel="rate at 0.5 s/token, of the best")
    sizes = list(blocks.sizes(found.size))
    for lengths in ["alpaca"] if found.size.quick else list(blocks.GOOD):
        served = [found.capacity(blocks.block_setup(lengths, one)) for one in sizes]
        axes.plot(sizes, [one / max(served) for one in served], marker="o", label=LENGTHS[lengths])
    _by_block_size(axes, sizes)
    return figure


def _two_ways(found: Found) -> Figure:
    """Fig. 19."""
    figure = new_figure((8, 3.4))
    micro = blocks.moves()
    left = figure.add_subplot(1, 2, 1, xlabel="block size", ylabel="ms", title=f"{blocks.VICTIM_TOKENS} tokens")
    left.plot(list(micro), [move.swap_ms for move in micro.values()], marker="o", label="swap out and in")
    left.plot(list(micro), [move.recompute_ms for move in micro.values()], marker="o", label="recompute")
    _by_block_size(left, list(micro))
    sizes = list(blocks.preempt_sizes(found.size))
    right = figure.add_subplot(1, 2, 2, xlabel="block size", ylabel="s/token", title=f"end to end, {blocks.RATE} req/s")
    for label, place in (("swap", 1), ("recompute", 0)):
        runs = [found.at(blocks.preempt_setups(one)[place], blocks.RATE, drain=True) for one in sizes]
        right.plot(sizes, [one.normalized_latency for one in runs], marker="o", label=label)
    _by_block_size(right, sizes)
    return figure


def _by_block_size(axes: Any, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(one) for one in sizes])
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


FIGURES = (
    Picture("fig02", "H1", "Fig. 2: what fills the KV cache", _memory),
    Picture("fig12", "H6", "Fig. 12: normalized latency by request rate", _rates),
    Picture("fig13", "H4", "Fig. 13: batched requests", _batched),
    Picture("fig15", "H8", "Fig. 15: memory saved by sharing", _saved),
    Picture("fig16", "H11", "Fig. 16: translation behind a shared prefix", _prefix),
    Picture("fig18b", "H14", "Fig. 18b: block sizes (memory side only)", _block_sizes),
    Picture("fig19", "H15", "Fig. 19: swap and recompute by block size", _two_ways),
)
