"""Claim: what one of the paper's statements needs to be run, and how it is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.tasks import Size, Task
    from paged_core.sim.reproduce.verdict import Row

SHAREGPT_RATE = 2.0
"""Requests a second at which the paper counts batched requests of ShareGPT lengths (its Fig. 13a)."""
ALPACA_RATE = 30.0
"""The same of Alpaca lengths (Fig. 13b)."""
RATES = {"sharegpt": SHAREGPT_RATE, "alpaca": ALPACA_RATE}
LENGTHS = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
MODELS = {"opt-13b": "OPT-13B", "opt-66b": "OPT-66B", "opt-175b": "OPT-175B (roofline)"}


@dataclass(frozen=True, slots=True)
class Claim:
    """One entry of the list.

    id          as `H4`, or `control`
    title       what it says
    conditions  under which the paper found it, and where ours differ
    tasks       what has to be run
    rows        lines of the table, of what those runs found
    """

    id: str
    title: str
    conditions: str
    tasks: Callable[[Size], list[Task]]
    rows: Callable[[Found], list[Row]]
