"""PriorityScheduler: ageing to the second, who makes room, and how many may be away; the rest is in the suite."""

from __future__ import annotations

import pytest
from paged_conformance.benches.stage import Stage, decide
from paged_conformance.benches.traffic import Ask, play, random_asks, undisturbed
from paged_conformance.candidate import Candidate
from paged_sched_priority import PriorityProvider, PrioritySettings
from pydantic import ValidationError

from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, Request, Sequence
from paged_core.api.scheduler import SchedulerNeed
from paged_core.testing.build import EngineShape, default_plugins


def scheduler(**settings):
    return PriorityProvider().create(SchedulerNeed(64, 4, 64, 4, 64), PrioritySettings(**settings), default_plugins())


def serve(asks, *, ageing_s=60.0, step_s=1.0, **sizes):
    shape = EngineShape(**{"sched": "sched_priority", "prefix_cache": False, **sizes})
    done = play(default_plugins(), shape, asks, step_s=step_s, wrap=lambda _: scheduler(ageing_s=ageing_s))
    done.assert_sound()
    assert not done.recorder.breaches
    return done


def order_of_entry(done):
    return [group for note in done.recorder.notes for group in note.admitted]


@pytest.mark.parametrize(("late_s", "first"), [(29.0, "urgent"), (31.0, "patient")])
def test_one_step_of_priority_is_worth_ageing_s_seconds(late_s, first):
    groups = []
    for name, priority, arrival in (("patient", 3, 100.0), ("urgent", 2, 100.0 + late_s)):
        request = Request(name, (1, 2), SamplingParams(), arrival, priority=priority)
        groups.append(Group(request, [Sequence(request)]))
    rank = scheduler(ageing_s=30.0).rank
    assert min(groups, key=rank).id == first


def test_a_request_is_passed_only_by_what_comes_within_its_ageing():
    """One sequence at a time, steps of a second: a priority of 2 against 0 is made up for by twice 5 seconds."""
    asks = [Ask("first", (1, 2), 3), Ask("patient", (3, 4), 2, at=1, priority=2)]
    asks += [Ask(f"urgent{i}", (5 + i, 6), 3, at=2 + i) for i in range(20)]
    done = serve(asks, ageing_s=5.0, max_num_seqs=1)
    order = order_of_entry(done)
    assert order.index("patient") == 1 + 9  # behind `first` and the urgent ones that came before second 11
    assert order[:3] == ["first", "urgent0", "urgent1"]


def test_the_least_urgent_leave_first_and_no_more_than_it_takes():
    stage = Stage(default_plugins(), num_blocks=16)
    members = [stage.runs(15, priority=priority) for priority in (9, 4, 7)]  # four blocks each
    stage.waits(25, priority=1)
    candidate = Candidate(default_plugins().records["sched_priority"], default_plugins(), "cpu", quick=True)
    decision, recorder = decide(candidate, stage, 64, 8)
    assert decision.preempt == [members[0]]
    assert not recorder.breaches
    stage = Stage(default_plugins(), num_blocks=16)
    members = [stage.runs(15, priority=priority) for priority in (9, 4, 7)]
    stage.waits(40, priority=1)
    decision, _ = decide(candidate, stage, 64, 8)
    assert decision.preempt == [members[0], members[2]]


def test_whoever_others_left_for_runs_in_the_same_step():
    asks = [Ask("less", (1,) * 8, 30, priority=3), Ask("more", (2,) * 8, 4, at=4, priority=1)]
    done = serve(asks, max_num_seqs=1)
    (note,) = [note for note in done.recorder.notes if note.preempt]
    assert (note.preempt, note.admitted, note.tokens) == (("less",), ("more",), {"more": 8})
    assert done.preemptions == {"less": 1, "more": 0}
    assert done.tokens == undisturbed(default_plugins(), asks)


def test_no_more_are_displaced_than_can_be_kept_away():
    """Each is more urgent than all before it: with three sequences at most three are away, the others wait for room."""
    asks = [Ask(f"r{i}", (1 + i, 2, 3), 12, at=i, priority=40 - i) for i in range(20)]
    done = serve(asks, max_num_seqs=3)
    away, most = set(), 0
    for note in done.recorder.notes:
        away = (away | set(note.preempt)) - set(note.resume)
        most = max(most, len(away))
    assert most == 3
    assert done.tokens == undisturbed(default_plugins(), asks)


def test_with_equal_priorities_it_decides_as_first_come_first_served():
    asks = random_asks(4, 300, 0.3)
    sizes = {"num_blocks": 24, "max_num_seqs": 5, "token_budget": 16}
    ours = serve(asks, **sizes)
    theirs = play(default_plugins(), EngineShape(sched="sched_fcfs", prefix_cache=False, **sizes), asks, step_s=1.0)
    assert ours.recorder.notes == theirs.recorder.notes
    assert sum(ours.preemptions.values()) > 10


def test_settings_out_of_range_are_refused():
    for wrong in ({"ageing_s": 0.0}, {"watermark": 1.0}, {"ageing": 3}):
        with pytest.raises(ValidationError):
            PrioritySettings(**wrong)
    assert not PriorityProvider().probe(SchedulerNeed(64, 4, 64, 4, 20, required=frozenset({"fcfs"}))).ok
