"""Document: the results as a Markdown page; a function of the results alone, so that it cannot drift from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paged_core.sim.reproduce.claims.every import chosen
from paged_core.sim.reproduce.claims.rates import KNEES
from paged_core.sim.reproduce.plots import FIGURES
from paged_core.sim.reproduce.reasons import reason
from paged_core.sim.reproduce.setup import KINDS, NAMES, Setup
from paged_core.sim.reproduce.tasks import Curve
from paged_core.sim.reproduce.verdict import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paged_core.sim.reproduce.claims.claim import Claim
    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.verdict import Row

_INTRODUCTION = """# The paper's numbers, reproduced

The experiments of the PagedAttention paper (Kwon et al., SOSP 2023), run again on this engine: its ledger,
allocators, schedulers and preemption are the real ones; only the model is replaced by what its steps would take
(`exec_sim`), and the clock is virtual. Made by

```sh
paged-core reproduce
```

from the results in [{results}]({results}); tests render this page from them again and compare, and repeat some of the
runs. Nothing here was edited by hand.
"""
_CONDITIONS = """## Conditions

* **vLLM** is `alloc_cow` with blocks of 16 and `sched_prefill_first` (whole prompts in steps of their own, nobody
  new while a group is swapped out, the newest leaves first), victims recomputed unless it says otherwise. **Orca**
  is the same scheduler over `alloc_contiguous`, a buddy allocator that reserves the output's true length (Oracle),
  the next power of two (Pow2) or all of the 2,048 positions (Max). **FasterTransformer** is `sched_static` over
  Max: as many of the earliest requests as fit, until the last of them ends.
* **Memory**: 15,728 slots for OPT-13B on one A100 of 40 GB, 9,700 for OPT-66B on four, 60,074 for OPT-175B on eight
  of 80 GB.
* **Time**: published fits of vLLM's kernels (DistServe) for OPT-13B and 66B, what bandwidth bounds of a decode 1.31
  times slower for GPUs of 40 GB. OPT-175B has no published fit: its rows are by the roofline model, and marked so.
* **Requests**: Poisson arrivals in virtual traces of {minutes:g} minutes; the authors' artifact shortens the
  paper's hour to ten, too. A quarter as long unless the lengths are ShareGPT's, for shorter requests come ten times
  as fast; half with OPT-175B, and a quarter with beams. Lengths are drawn from distributions fitted to the paper's
  means (`paged_core/workload/lengths.py`), for its traces are not published; the end of sequence is ignored. Figures at
  one rate are means over {traces} traces (of beams: one), after the first tenth of each.
* **Latency** is the paper's: mean over requests of latency over output tokens. The rate a system serves is where
  that passes 0.5 s a token, interpolated between rates no more than {precision:.0%} apart. One trace for every
  curve, the same requests for every system and rate.

A row without a mark is *required*: a miss would be a fault of the engine, of the costs or of the measurement. Rows
marked ° are shown with their verdict and required of nobody, mostly because what they depend on is not stated. A
claim whose figures were used to fit the lengths (H1, H2, H4, H5) proves less than the others. Some required figures
lie at the edge. The internal share of Pow2 is more than 10 % from the paper's and holds by the 2 points alone: it is
15.5 % over 14 traces, and 14.9 % by the lengths alone. Batched requests of vLLM over those of Orca (Oracle) use nine
tenths of their 10 %, and those of requests of 480 + 33 tokens nearly all of it. Figures of H15's microbenchmark are a
formula's, with no cost of computing that depends on the block: that recomputing is flat is assumed, not found.
"""
_RATES = """## Rates served, by normalized latency

Requests a second at so many seconds a token; a dash where no rate tried lies there. The paper's knees are read off its
Fig. 12. Two things shift ours. A trace of ten minutes ends before a queue that grows slowly has grown long, so rates of
ShareGPT's lengths lie above what is served for ever (OPT-13B on vLLM: 1.96 requests a second in traces of an hour). And
the published costs are too high where few sequences run: seven at a time, Orca (Max) serves seven requests a second of
58 tokens each in the paper, which takes 17 ms a step; here such a step takes 31.
"""


def render(found: Found, results: str, images: str) -> str:
    """The page. `results`: name of the file beside it that the results are in; `images`: folder of the pictures."""
    claims = chosen(found.only)
    rows = {claim.id: claim.rows(found) for claim in claims}
    size = found.size
    conditions = _CONDITIONS.format(minutes=size.minutes, traces=size.traces, precision=size.precision)
    parts = [_INTRODUCTION.format(results=results), _summary(rows.values()), *_table(claims, rows)]
    parts += [*_misses(rows.values()), conditions, *_capacities(found), *_pictures(found, images)]
    return "\n".join(parts).replace("%", " %").replace("  %", " %") + "\n"


def counts(rows: Iterable[Row]) -> tuple[int, int, int, int]:
    """Required rows and those of them that are reproduced; other rows with a verdict, and those reproduced."""
    judged = [row for row in rows if row.tolerance is not None]
    required = [row for row in judged if row.required]
    others = [row for row in judged if not row.required]
    good = [sum(row.verdict == "reproduced" for row in part) for part in (required, others)]
    return len(required), good[0], len(others), good[1]


def _summary(rows: Iterable[Sequence[Row]]) -> str:
    required, good, others, also = counts(row for part in rows for row in part)
    return f"**{good} of {required} required figures are reproduced**, and {also} of {others} others.\n"


def _table(claims: Sequence[Claim], rows: dict[str, list[Row]]) -> list[str]:
    lines = ["| | figure | paper | ours | held to | verdict |", "|---|---|---|---|---|---|"]
    for claim in claims:
        lines.append(f"| **{claim.id}** | **{claim.title}** ({claim.conditions}) | | | | |")
        for row in rows[claim.id]:
            mark = "" if row.required else "°"
            verdict = f"**{row.verdict}**" if row.verdict == "missed" else row.verdict
            cells = (row.what + mark, row.paper or "-", shown(row.ours, row.unit), row.tolerance_text, verdict)
            lines.append(f"| {claim.id} | {' | '.join(cells)} |")
    return [*lines, ""]


def _misses(rows: Iterable[Sequence[Row]]) -> list[str]:
    missed = [row for part in rows for row in part if row.verdict == "missed"]
    if not missed:
        return []
    reasons: dict[str, list[str]] = {}
    for row in missed:
        reasons.setdefault(reason(row), []).append(f"{row.claim}, {row.what} ({shown(row.ours, row.unit)})")
    return ["## What is missed, and why", "", *(f"* {'; '.join(what)}: {why}" for why, what in reasons.items()), ""]


def _capacities(found: Found) -> list[str]:
    """Rates at several latencies, of every panel of Fig. 12 that was run."""
    limits = (0.1, 0.3, 0.5, 0.7, 0.9)
    lines = []
    for model, lengths in (*KNEES, ("opt-175b", "alpaca")):
        for kind in KINDS:
            setup = Setup(kind, model, lengths)
            if Curve(setup, 0).key in found.runs:
                knee = KNEES.get((model, lengths), {}).get(kind, math.nan)
                rates = [shown(found.capacity(setup, limit)) for limit in limits]
                lines.append(f"| {model} {lengths} | {NAMES[kind]} | {' | '.join(rates)} | {_about(knee)} |")
    if not lines:
        return []
    head = " | ".join(f"{limit} s" for limit in limits)
    return [
        _RATES,
        f"| load | system | {head} | paper's knee |",
        "|---|---|" + "---|" * (len(limits) + 1),
        *lines,
        "",
    ]


def _about(knee: float) -> str:
    return "-" if math.isnan(knee) else f"~{knee:g}"


def _pictures(found: Found, images: str) -> list[str]:
    lines = ["## Pictures", ""]
    for figure in FIGURES:
        if figure.claim in found.only:
            lines += [f"**{figure.caption}**", "", f"![{figure.caption}]({images}/{figure.name}.png)", ""]
    return lines if len(lines) > 2 else []
