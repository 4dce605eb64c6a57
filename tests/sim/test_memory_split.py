"""Where a simulated pool is: token, reserved, internal, and the rest, for pages and for runs reserved ahead."""

from __future__ import annotations

import numpy as np
import pytest

from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.workload.lengths import arrivals_of, sharegpt
from paged_core.workload.traces import Arrival

POOL = 15728  # slots that OPT-13B leaves on an A100 of 40 GB


def system(reservation=None, **choices):
    """The paper's: runs with this reservation, or pages."""
    if reservation is None:
        return System(alloc="alloc_cow", sched="sched_prefill_first", **choices)
    tables = {"alloc_contiguous": {"reservation": reservation}}
    return System(alloc="alloc_contiguous", sched="sched_prefill_first", plugins=tables, **choices)


def split(steps, i):
    names = ("token_slots", "reserved_slots", "internal_slots", "used_slots", "total_slots")
    return [int(getattr(steps, name)[i]) for name in names]


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize(
    ("reservation", "internal", "used"), [("max", 2048 - 186, 2048), ("pow2", 7, 256), ("oracle", 0, 256)]
)
def test_a_prompt_of_161_and_an_answer_of_25(block_size, reservation, internal, used) -> None:
    """The last token's keys and values are never computed: its slot stays reserved."""
    steps = simulate(system(reservation, block_size=block_size), [Arrival(0.0, 161, 25)]).steps
    total = POOL // block_size * block_size
    assert len(steps) == 25
    assert split(steps, 0) == [161, 25, internal, used, total]
    assert split(steps, 10) == [171, 15, internal, used, total]
    assert split(steps, 24) == [185, 1, internal, used, total]


def test_pages_hold_the_tokens_and_the_rest_of_the_last_block() -> None:
    steps = simulate(system(), [Arrival(0.0, 161, 25)]).steps
    assert split(steps, 0)[:4] == [161, 15, 0, 176]
    assert split(steps, 24)[:4] == [185, 1, 6, 192]


@pytest.mark.parametrize("reservation", [None, "max", "pow2", "oracle"])
@pytest.mark.parametrize("sampling", [{}, {"n": 2}, {"use_beam_search": True, "beam_width": 2}])
def test_the_parts_are_of_what_is_used(reservation, sampling) -> None:
    random = np.random.default_rng(1)
    arrivals = arrivals_of(sharegpt(10, random), np.sort(random.uniform(0, 10, 10)))
    outcome = simulate(system(reservation), arrivals, sampling=sampling)
    assert outcome.requests.finished.all()
    steps = outcome.steps
    parts = steps.token_slots + steps.reserved_slots + steps.internal_slots
    assert (np.minimum.reduce([steps.token_slots, steps.reserved_slots, steps.internal_slots]) >= 0).all()
    assert (steps.used_slots <= steps.total_slots).all()
    if reservation is None:
        shared = steps.saved_blocks > 0
        assert (parts == steps.used_slots)[~shared].all()
    else:
        assert (parts <= steps.used_slots).all()
        assert not steps.saved_blocks.any()
        assert sum(outcome.preemptions.values()) == 0
