"""Claims about blocks that samples and beams of a request share (paper, Fig. 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.sim.reproduce.claims.claim import LENGTHS, RATES, Claim
from paged_core.sim.reproduce.setup import Mode, Setup
from paged_core.sim.reproduce.tasks import At
from paged_core.sim.reproduce.verdict import Interval, Points, Row, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.tasks import Size, Task
    from paged_core.sim.reproduce.verdict import Tolerance

WIDTHS = (2, 4, 6)
PAPER: Mapping[Mode, Mapping[str, Mapping[int, float]]] = {  # percent, by width; of ShareGPT only the ends are stated
    "sample": {"alpaca": {2: 6.09, 4: 8.53, 6: 9.79}, "sharegpt": {2: 16.2, 6: 30.5}},
    "beam": {"alpaca": {2: 37.56, 4: 53.13, 6: 55.16}, "sharegpt": {2: 44.3, 6: 66.3}},
}
WORDS: Mapping[Mode, str] = {"sample": "samples", "beam": "beams"}


def setup(mode: Mode, lengths: str, width: int) -> Setup:
    """The paper's vLLM with so many sequences a request."""
    return Setup(lengths=lengths, mode=mode, width=width)


def bound(width: int) -> float:
    """Percent saved if everything were shared."""
    return 100 * (width - 1) / width


def _tasks(mode: Mode, size: Size) -> list[Task]:
    widths = WIDTHS[:1] if size.quick else WIDTHS
    return [At(setup(mode, lengths, width), RATES[lengths]) for lengths in PAPER[mode] for width in widths]


def _rows(claim: str, mode: Mode, found: Found, *, required: bool) -> list[Row]:
    rows = []
    for lengths, told in PAPER[mode].items():
        for width in WIDTHS[:1] if found.size.quick else WIDTHS:
            ours = 100 * found.at(setup(mode, lengths, width), RATES[lengths]).saved
            low, high = min(told.values()), max(told.values())
            paper = shown(told[width], "%") if width in told else f"{low}-{high} %"
            near: Tolerance = Points(told[width], found.size.points) if width in told else Interval(low, high)
            what = f"blocks saved, {LENGTHS[lengths]}, {width} {WORDS[mode]} (at most {bound(width):.0f} %)"
            rows.append(Row(claim, what, paper, ours, "%", near, required=required))
    return rows


CLAIMS = (
    Claim(
        "H8",
        "Samples of a request share its prompt",
        "OPT-13B, 2 req/s (ShareGPT) and 30 req/s (Alpaca); the paper names no rate (Fig. 15a)",
        lambda size: _tasks("sample", size),
        lambda found: _rows("H8", "sample", found, required=True),
    ),
    Claim(
        "H9",
        "Beams share more",
        "as H8 (Fig. 15b); there is no model, so beams part where random draws let them: see the real ones in "
        "[performance.md](performance.md)",
        lambda size: _tasks("beam", size),
        lambda found: _rows("H9", "beam", found, required=False),
    ),
)
