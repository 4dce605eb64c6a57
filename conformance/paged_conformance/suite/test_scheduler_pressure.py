"""Schedulers where memory, budget or time is short: progress, fairness, no thrashing, streams that keep moving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_conformance.benches.traffic import Ask, Play, play, preempting_by, shape_for, undisturbed
from paged_conformance.marks import layer, requires

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("behaviour")

MODES = ("recompute", "swap")


def run(sched: Candidate, asks: list[Ask], step_s: float = 0.001, **sizes: Any) -> Play:
    """Play `asks` with `sched`; sizes are fields of EngineShape."""
    if not sched.has("chunked_prefill"):  # a step must hold whatever a victim computes again
        sizes |= {"chunked_prefill": False, "token_budget": 64}
    shape = shape_for(sched.plugins, sched=sched.name, **sizes)
    return play(sched.plugins, shape, asks, step_s=step_s)


def prompt(number: int, length: int) -> tuple[int, ...]:
    """A prompt of its own: it shares no block with another number's."""
    return tuple(1 + (7 * number + i * (number + 1)) % 90 for i in range(length))


def mode_sizes(sched: Candidate, mode: str, num_blocks: int) -> dict[str, Any]:
    """The registry's best plugin for `mode`, and the host room that makes it choose so."""
    return {"preempt": preempting_by(sched.plugins, mode), "num_host_blocks": num_blocks if mode == "swap" else 0}


def test_nothing_is_evicted_while_everything_fits(sched: Candidate) -> None:
    asks = [Ask(f"r{i}", prompt(i, 5 + i), 20, at=2 * i) for i in range(8)]
    done = run(sched, asks, num_blocks=128, token_budget=64, max_num_seqs=16)
    victims = {group for note in done.recorder.notes for group in note.preempt}
    assert not victims, f"pool, budget and cap are ample, yet {sorted(victims)} were evicted"
    done.assert_sound()


def test_requests_that_all_fit_run_together(sched: Candidate) -> None:
    asks = [Ask(f"r{i}", prompt(i, 6), 30) for i in range(6)]
    done = run(sched, asks, num_blocks=128, token_budget=64, max_num_seqs=16)
    entered = [group for note in done.recorder.notes[: len(asks)] for group in note.admitted]
    assert len(entered) == len(asks), (
        f"admission of what fits: {len(asks)} requests fit at once and after {len(asks)} steps only {entered} run"
    )
    done.assert_sound()


def test_a_lone_group_is_never_preempted(sched: Candidate) -> None:
    done = run(sched, [Ask("alone", prompt(1, 10), 40)], num_blocks=4, token_budget=16, max_num_seqs=4)
    assert not done.preemptions.get("alone"), "design 4b.9: nobody gains by preempting the only group"
    assert not any(note.preempt for note in done.recorder.notes)
    done.assert_sound()
    assert len(done.tokens["alone"]) == 7, "16 slots hold a prompt of 10 and 6 outputs; the 7th needs none"


def test_a_group_that_outgrows_the_pool_does_not_hold_up_the_next(sched: Candidate) -> None:
    asks = [Ask("endless", prompt(1, 20), 40), Ask("small", prompt(2, 4), 4, at=1)]
    done = run(sched, asks, num_blocks=6, token_budget=32, max_num_seqs=4)
    done.assert_sound()
    assert len(done.tokens["small"]) == 4, f"case S01: {done.tokens}"


@requires("chunked_prefill")
def test_streams_get_a_token_in_every_step_beside_a_long_prompt(sched: Candidate) -> None:
    streams = [Ask(f"stream{i}", prompt(i, 4), 20) for i in range(2)]
    done = run(sched, [*streams, Ask("long", prompt(9, 48), 2, at=3)], num_blocks=64, token_budget=8, max_num_seqs=4)
    done.assert_sound()
    started = [note for note in done.recorder.notes if note.tokens.get("long", 0) > 1]
    assert len(started) > 1, f"chunked_prefill: 48 tokens at a budget of 8 ran in {len(started)} chunk(s)"
    silent = [note.step for note in started if not {"stream0", "stream1"} <= set(note.tokens)]
    assert not silent, f"case S07: while the prompt of 48 was computed in chunks, a stream stood still at {silent}"


@pytest.mark.parametrize("mode", MODES)
def test_a_returner_is_not_evicted_again_and_again(sched: Candidate, mode: str) -> None:
    asks = [Ask("sitter", prompt(1, 13), 26), Ask("returner", prompt(2, 17), 20, at=1)]
    sizes: dict[str, Any] = {"num_blocks": 10, "token_budget": 8, "max_num_seqs": 4, "prefix_cache": False}
    done = run(sched, asks, **sizes, **mode_sizes(sched, mode, 10))
    done.assert_sound()
    most = max(done.preemptions.values())
    assert most <= 2, f"case P05: a group was preempted {most} times: {done.preemptions}"
    assert done.num_steps < 150, f"case P05: {done.num_steps} steps for 46 tokens"
    assert done.tokens == undisturbed(sched.plugins, asks)


@pytest.mark.parametrize("mode", MODES)
def test_overload_makes_progress_with_few_preemptions(sched: Candidate, mode: str) -> None:
    asks = [Ask(f"r{i}", prompt(i, 8), 40) for i in range(20)]
    sizes = mode_sizes(sched, mode, 36)
    done = run(sched, asks, num_blocks=36, token_budget=64, max_num_seqs=20, **sizes)
    done.assert_sound()
    assert done.tokens == undisturbed(sched.plugins, asks)
    most = max(done.preemptions.values())
    if not sched.has("unfair"):
        assert most <= 5, f"case P07: 20 requests on a pool for three, one was preempted {most} times"
    assert sum(done.preemptions.values()) <= 100, f"case P07: {sum(done.preemptions.values())} preemptions thrash"


@pytest.mark.parametrize("mode", MODES)
def test_two_requests_on_a_pool_for_one_do_not_play_ping_pong(sched: Candidate, mode: str) -> None:
    asks = [Ask("one", prompt(1, 12), 24), Ask("two", prompt(2, 12), 24)]
    done = run(sched, asks, token_budget=32, max_num_seqs=4, **mode_sizes(sched, mode, 10), num_blocks=10)
    done.assert_sound()
    assert sum(done.preemptions.values()) <= 3, f"thrash: {done.preemptions}"


@pytest.mark.parametrize("mode", MODES)
def test_preempted_groups_come_back_under_a_stream_of_newcomers(sched: Candidate, mode: str) -> None:
    """Two long requests do not fit together; small ones keep coming, so that the pool is never empty."""
    asks = [Ask("old", prompt(1, 8), 48), Ask("young", prompt(2, 8), 48, at=1)]
    asks += [Ask(f"small{i}", prompt(3 + i, 4), 4, at=20 + 2 * i) for i in range(60)]
    sizes = mode_sizes(sched, mode, 18)
    done = run(sched, asks, num_blocks=18, token_budget=24, max_num_seqs=6, **sizes)
    away = {group for note in done.recorder.notes for group in note.preempt}
    back = {group for note in done.recorder.notes for group in note.resume}
    assert away <= back, f"no starvation: {sorted(away - back)} were preempted and never resumed"
    done.assert_sound()


def test_nobody_starves_under_a_burst(sched: Candidate) -> None:
    """A long request, then many short ones faster than they can be served: it may not wait until all are gone."""
    num = 60 if sched.quick else 240
    asks = [Ask(f"first{i}", prompt(i, 8), 12) for i in range(4)]
    asks += [Ask("long", prompt(5, 30), 20, at=1)]
    asks += [Ask(f"late{i}", prompt(6 + i, 4 + i % 5), 8, at=2 + i) for i in range(num)]
    done = run(sched, asks, num_blocks=64, token_budget=32, max_num_seqs=4, step_s=1.0)
    done.assert_sound()
    if sched.has("unfair"):
        return  # a declared baseline must bring everybody to an end, in whatever order
    order = [group for note in done.recorder.notes for group in note.admitted]
    before = order.index("long") - 4
    assert before <= num // 2, (
        f"no starvation: {before} of {num} requests that came after a long one were admitted before it"
    )
