"""MaxUtilizationScheduler: the pool is filled to its last block, and the newest pauses when that was too much."""

from __future__ import annotations

from paged_conformance.benches.traffic import Ask, play, random_asks, undisturbed
from paged_sched_max_utilization import MaxUtilizationProvider

from paged_core.api.scheduler import SchedulerNeed
from paged_core.testing.build import EngineShape, default_plugins


def serve(asks, sched="sched_max_utilization", **sizes):
    shape = EngineShape(**{"sched": sched, "prefix_cache": False, **sizes})
    done = play(default_plugins(), shape, asks)
    done.assert_sound()
    assert not done.recorder.breaches
    return done


def test_a_prompt_that_takes_the_last_block_enters():
    asks = [Ask("a", (1,) * 200, 3), Ask("b", (2,) * 199, 3), Ask("c", (3,), 3)]
    sizes = {"num_blocks": 100, "token_budget": 512, "max_model_len": 256}
    full = serve(asks, num_blocks=100, token_budget=512, max_model_len=256)
    assert full.recorder.notes[0].admitted == ("a", "b")
    kept = serve(asks, "sched_fcfs", **sizes)
    assert kept.recorder.notes[0].admitted == ("a",)  # one block of a hundred stays free


def test_the_newest_pauses_and_returns_before_newcomers():
    asks = [Ask("old", (1,) * 8, 30), Ask("young", (2,) * 8, 30, at=1), Ask("new", (3,) * 9, 4, at=20)]
    done = serve(asks, num_blocks=12)
    pauses = [note for note in done.recorder.notes if note.preempt]
    assert pauses[0].preempt == ("young",)
    assert pauses[0].step < 20
    events = [(group, note.step) for note in done.recorder.notes for group in (*note.resume, *note.admitted)]
    assert [group for group, step in events if step > pauses[0].step] == ["young", "new"]


def test_pauses_are_counted_and_change_no_token():
    asks = random_asks(8, 300, 0.3)
    done = serve(asks, num_blocks=20)
    assert sum(done.preemptions.values()) == sum(done.engine.stats().preemptions.values()) > 10
    assert done.tokens == undisturbed(default_plugins(), asks)


def test_it_has_no_settings_and_fits_any_limits():
    assert MaxUtilizationProvider().probe(SchedulerNeed(1, 1, 64, 4, 0)).ok
    assert not MaxUtilizationProvider().probe(SchedulerNeed(1, 0, 64, 4, 0)).ok
    assert MaxUtilizationProvider.Settings.model_fields == {}
