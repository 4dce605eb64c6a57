"""Schedulers that declare `priority`: who enters first, who leaves for whom, and that nobody waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.benches.stage import Stage, decide
from paged_conformance.benches.traffic import Ask, play, random_asks, shape_for, undisturbed
from paged_conformance.marks import layer, requires
from paged_core.api.request import GroupState

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")

LESS, MORE = 5, 1  # priorities: smaller is more urgent


@requires("priority")
def test_the_most_urgent_enters_first_and_equals_as_they_came(sched: Candidate) -> None:
    stage = Stage(sched.plugins, num_blocks=32)
    stage.runs(6, priority=MORE)
    late = [stage.waits(6, priority=priority) for priority in (LESS, MORE, LESS, MORE)]
    for num_seqs, expected in ((2, [late[1]]), (3, [late[1], late[3]]), (4, [late[1], late[3], late[0]])):
        decision, recorder = decide(sched, stage, 64, num_seqs)
        entered = [run.group for run in decision.run if run.group.state is GroupState.WAITING]
        assert entered == expected, f"{num_seqs - 1} sequences are free: {[group.id for group in entered]} entered"
        assert not recorder.breaches


@requires("priority")
@pytest.mark.parametrize(("num_blocks", "num_seqs"), [(9, 8), (32, 2)], ids=["blocks", "sequences"])
def test_the_less_urgent_leave_for_the_more_urgent(sched: Candidate, num_blocks: int, num_seqs: int) -> None:
    stage = Stage(sched.plugins, num_blocks)
    more, less = stage.runs(14, priority=MORE), stage.runs(14, priority=LESS)
    assert more is not None
    assert less is not None
    urgent = stage.waits(10, priority=MORE)
    decision, recorder = decide(sched, stage, 64, num_seqs)
    assert decision.preempt == [less], "the only one of lower priority makes room, and nobody else"
    assert not recorder.breaches
    stage.leaves(less, swap=False)
    decision, recorder = decide(sched, stage, 64, num_seqs)
    ran = [run.group for run in decision.run if run.group.state is not GroupState.RUNNING]
    assert ran == [urgent], "whoever others left for enters before them"
    assert not recorder.breaches


@requires("priority")
def test_nobody_leaves_for_an_equal(sched: Candidate) -> None:
    stage = Stage(sched.plugins, num_blocks=32)
    for _ in range(2):
        stage.runs(6, priority=LESS)
    stage.waits(6, priority=LESS)
    decision, _ = decide(sched, stage, 64, 2)
    assert decision.preempt == []


@requires("priority")
def test_nobody_leaves_in_vain(sched: Candidate) -> None:
    """Even without the one of lower priority the urgent one would not fit."""
    stage = Stage(sched.plugins, num_blocks=16)
    stage.runs(38, priority=MORE)
    stage.runs(6, priority=LESS)
    stage.waits(40, priority=MORE)
    decision, _ = decide(sched, stage, 64, 8)
    assert decision.preempt == []


@requires("priority")
def test_the_less_urgent_do_not_starve_under_a_stream_of_urgent_ones(sched: Candidate) -> None:
    """Steps of ten seconds; urgent requests come faster than they can be served, for an hour and more."""
    num = 200
    asks = [Ask(f"first{i}", (1 + i, 2, 3), 12, priority=MORE) for i in range(3)]
    asks += [Ask("patient", (9, 9, 9, 9), 8, at=1, priority=LESS)]
    asks += [Ask(f"urgent{i}", (20 + i % 60, 3), 6, at=2 + 2 * i, priority=MORE) for i in range(num)]
    shape = shape_for(sched.plugins, sched=sched.name, num_blocks=64, token_budget=32, max_num_seqs=2)
    done = play(sched.plugins, shape, asks, step_s=10.0)
    done.assert_sound()
    order = [group for note in done.recorder.notes for group in note.admitted]
    before = order.index("patient")
    assert before <= num // 2, f"no starvation: {before} of {num} urgent requests were admitted before it"


@requires("priority")
def test_requests_of_all_priorities_get_their_undisturbed_tokens(sched: Candidate) -> None:
    asks = [
        Ask(ask.id, ask.prompt, ask.num_tokens, ask.at, priority=i * 7 % 5)
        for i, ask in enumerate(random_asks(21, 500 if sched.quick else 2_000, 0.3))
    ]
    shape = shape_for(
        sched.plugins, sched=sched.name, num_blocks=24, num_host_blocks=16, token_budget=16, max_num_seqs=5
    )
    done = play(sched.plugins, shape, asks)
    done.assert_sound()
    assert not done.recorder.breaches
    assert sum(done.preemptions.values()) > 0, "pool and cap were meant to be short"
    assert done.tokens == undisturbed(sched.plugins, asks)
