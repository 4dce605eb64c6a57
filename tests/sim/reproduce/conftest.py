"""Measurements made by hand, to judge what is made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paged_core.sim.reproduce.found import Found
from paged_core.sim.reproduce.measure import Measured
from paged_core.sim.reproduce.tasks import FULL, At, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paged_core.sim.reproduce.claims.claim import Claim
    from paged_core.sim.reproduce.setup import Setup


def made(**numbers: Any) -> Measured:
    """A measurement of which only some numbers matter."""
    rest = dict.fromkeys(Measured.__dataclass_fields__, math.nan)
    return Measured(**{**rest, "requests": 1, "finished": 1, "preemptions": 0, **numbers})


def knee_at(rate: float) -> list[Measured]:
    """A curve that passes 0.5 s/token exactly at `rate`."""
    rates, latencies = (rate / 2, rate, 2 * rate), (0.1, 0.5, 5.0)
    return [made(rate=one, normalized_latency=other) for one, other in zip(rates, latencies, strict=True)]


def found_of(
    claim: Claim,
    run: Callable[[At], Mapping[str, Any]],
    knee: Callable[[Setup], float],
    size: Size = FULL,
) -> Found:
    """What would be found if every run of `claim` measured `run(task)`, and every system served `knee(setup)`."""
    tasks = claim.tasks(size)
    runs = {
        task.key: [made(rate=task.rate, **run(task))] if isinstance(task, At) else knee_at(knee(task.setup))
        for task in tasks
    }
    return Found(size, (claim.id,), runs)
